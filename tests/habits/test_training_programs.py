"""Random training programs: every sequence of everyday actions equals that of the plain model."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.habits import training_faulty, training_run
from tests.habits.training_machine import ALL, machine
from tests.habits.training_model import Setting
from tests.habits.training_run import Program
from tests.pool import Pool, WorkerError

BENCHMARK = Path(__file__).parent.parent.parent / "benchmarks" / "training_programs"

EVERYDAY, LONG, ACTIONS = 30, 100, 8
"""Programs, and how many actions each has; `benchmarks/training_programs` runs ten thousand."""
ONE_EACH = {
    layout: [models[turn % len(models)]] for turn, (layout, models) in enumerate(ALL.items())
}
"""A model for each layout, in turn: most of the time of few programs is that of planning."""


def _run(pool: Pool, programs: int, models: Mapping[str, Sequence[str]]) -> None:
    """Each is drawn, run, and made shorter if it fails."""
    run_state_machine_as_test(
        machine(partial(training_run.run, pool), models),
        settings=settings(
            max_examples=programs, stateful_step_count=ACTIONS, print_blob=False,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip


def test_a_difference_is_seen(pool: Pool, tmp_path: Path) -> None:
    job = (Setting("one"), [("evaluate", 0), ("step", 0)], str(tmp_path), None, False)
    with pytest.raises(WorkerError, match=r"weight \w+[\s\S]*in one, action 1: step\(0,\)"):
        pool.run(1, training_faulty.forgets_to_step, *job, limit_s=100)


@pytest.mark.thorough
def test_a_failure_is_made_short_and_prints_as_code() -> None:
    """Saving clipped gradients is wrong here."""

    def run(program: Program) -> None:
        names = [name for name, *_ in program.actions]
        if "save" in names and "clip" in names[: names.index("save")]:
            raise ValueError(str(program))

    with pytest.raises(ValueError, match="clip") as error:
        run_state_machine_as_test(machine(run), settings=settings(max_examples=500, database=None))
    program = eval(str(error.value))
    assert [name for name, *_ in program.actions] == ["clip", "save"]
    assert program == Program(program.setting, program.actions)
    assert "state.clip(" in "".join(error.value.__notes__)


def test_the_table_of_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARK))
    monkeypatch.delitem(sys.modules, "table", raising=False)
    from table import table

    row = {
        "programs": 3, "seconds": 1.5, "commit": "abc", "date": "2026-11-28", "ranks": {"2": 3},
        "layouts": {"fsdp": 3}, "settings": {"adamw": 3}, "actions": {"step": 7}, "failures": [],
    }  # fmt: skip
    lines = table([row, {**row, "failures": [{"program": "", "error": ""}]}]).splitlines()
    assert lines[:2] == ["programs  6 in 2 blocks", "failures  1"]
    assert lines[-1].split() == ["step", "14"]


@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_programs(pool: Pool) -> None:
    _run(pool, EVERYDAY, ONE_EACH)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_programs(pool: Pool) -> None:
    _run(pool, LONG, ALL)
