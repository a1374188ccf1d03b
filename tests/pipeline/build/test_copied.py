"""What copies of a parameter cost: by hand, and in the predicted step."""

from __future__ import annotations

import math

import pytest

from autopar.compile.automatic import source_of
from autopar.ir.mesh import Mesh
from autopar.pipeline.build.copied import copied
from autopar.pipeline.build.pipeline_spec import PipelineSpec
from autopar.pipeline.build.predict import predict
from autopar.pipeline.build.staged import Staged, compile_pipeline
from autopar.request.pipeline import Pipeline
from autopar.sharding.sharding_problem import Settings
from tests.pipeline.build.cases import compiler_of
from tests.pipeline.build.hosts import slow_hosts

MESH = Mesh.of(2)
LATENCY_S, BYTES_PER_S = 1e-3, 1e6
HOSTS = slow_hosts(BYTES_PER_S, LATENCY_S, per_host=1)


def piped(name: str, schedule: str) -> Staged:
    graph = source_of(*compiler_of(name, MESH, HOSTS, layers=2)).parted(2)
    wanted = PipelineSpec.of(MESH, Pipeline(2, schedule, 2))
    return compile_pipeline(graph, MESH, HOSTS, Settings(), wanted)


def nbytes_of(staged: Staged, stage: int, only: str | None = None) -> list[int]:
    leaves = staged.stages.graphs[stage].leaves("parameter")
    return [math.prod(n.outputs[0].shape) * 4 for n in leaves if only in (None, n.target)]


def seconds_of(staged: Staged) -> dict[tuple[int, int], float]:
    found = copied(staged.plan, staged.stages, HOSTS)
    assert all(each.link == "inter_host" and each.worker != each.other for each in found)
    return {(each.stage, each.worker): each.seconds for each in found}


@pytest.mark.thorough
def test_a_tied_weight_goes_both_ways_once_a_step() -> None:
    made = piped("gpt2", "1f1b")
    ((name, readers),) = made.stages.ties
    assert readers == (0, 1)
    (nbytes,) = nbytes_of(made, 0, only=name)
    found = seconds_of(made)
    one = pytest.approx(LATENCY_S + nbytes / BYTES_PER_S)
    assert found == {(0, 0): one, (1, 1): one}


@pytest.mark.thorough
def test_what_nobody_shares_costs_nothing() -> None:
    made = piped("llama", "1f1b")
    assert not made.stages.ties
    assert seconds_of(made) == {}


def test_stages_that_two_workers_hold_add_up_all_their_gradients() -> None:
    """Chimera: both workers hold both stages."""
    made = piped("llama", "chimera")
    found = seconds_of(made)
    assert set(found) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    for stage in (0, 1):
        every = nbytes_of(made, stage)
        seconds = len(every) * LATENCY_S + sum(every) / BYTES_PER_S
        assert found[stage, 0] == found[stage, 1] == pytest.approx(seconds)


@pytest.mark.thorough
def test_the_prediction_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = piped("gpt2", "1f1b")
    copying = seconds_of(made)
    found = predict(made.plan, made.stages, HOSTS, Settings())
    monkeypatch.setattr("autopar.pipeline.build.predict.copied", lambda *_: ())
    without = predict(made.plan, made.stages, HOSTS, Settings())
    assert found.step_s - without.step_s == pytest.approx(copying[0, 0])
