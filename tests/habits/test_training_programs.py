"""Random training programs: every sequence of everyday actions equals that of the plain model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.habits import training_program as program
from tests.pool import Pool

EVERYDAY, LONG, AT_ONCE = 4, 2000, 5
"""Examples of so many programs each; ten thousand programs in the long run."""
SEED = st.integers(0, 5)
PART = st.sampled_from(program.PARTS)
ACTION = st.one_of(
    st.tuples(st.just("step"), SEED),
    st.tuples(st.just("step"), SEED),
    st.tuples(st.just("smaller_step"), SEED),
    st.tuples(st.just("accumulate"), SEED),
    st.tuples(st.just("backward_only"), SEED),
    st.tuples(st.just("update")),
    st.tuples(st.just("clear"), st.booleans()),
    st.tuples(st.just("freeze_and_thaw"), PART),
    st.tuples(st.just("mode"), PART, st.booleans()),
    st.tuples(st.just("mode_of_all"), st.booleans()),
    st.tuples(st.just("evaluate"), SEED),
    st.tuples(st.just("forward_only"), SEED),
    st.tuples(st.just("failing_backward"), SEED),
    st.tuples(st.just("failing_forward")),
    st.tuples(st.just("clip"), st.sampled_from([0.01, 1.0])),
    st.tuples(st.just("average")),
    st.tuples(st.just("rate"), st.sampled_from([0.5, 2.0])),
    st.tuples(st.just("full_state")),
    st.tuples(st.just("save_and_load"), st.integers(0, 2)),
    st.tuples(st.just("resume")),
)
PRESET = st.sampled_from([None, "ddp", "zero2", "fsdp", "megatron"])
PROGRAM = st.tuples(st.lists(ACTION, min_size=2, max_size=8), PRESET, PRESET)
BATCH_OF_PROGRAMS = st.lists(PROGRAM, min_size=AT_ONCE, max_size=AT_ONCE)
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
"""A program that fails is short already, and each costs seconds."""
QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


@pytest.mark.timeout(600)
@settings(max_examples=EVERYDAY, phases=UNSHRUNK, suppress_health_check=QUIET)
@given(programs=BATCH_OF_PROGRAMS)
def test_programs(pool: Pool, programs: list[Any]) -> None:
    pool.run(2, program.run, programs)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@settings(max_examples=LONG, phases=UNSHRUNK, suppress_health_check=QUIET)
@given(programs=BATCH_OF_PROGRAMS)
def test_many_programs(pool: Pool, programs: list[Any]) -> None:
    pool.run(2, program.run, programs)
