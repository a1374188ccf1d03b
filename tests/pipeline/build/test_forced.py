"""Stages that a person forces are cut where the predicted step is least of what was tried."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest

from autopar.compile.automatic import source_of
from autopar.errors import InfeasibleError, OverLimitError
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.pipeline.build import forced
from autopar.pipeline.build.cuts import balanced
from autopar.pipeline.build.forced import compile_forced
from autopar.pipeline.build.pipeline_spec import PipelineSpec
from autopar.pipeline.build.predict import predict, predict_with_peaks
from autopar.pipeline.build.staged import Staged, compile_pipeline
from autopar.request.pipeline import Pipeline
from autopar.sharding.sharding_problem import Settings
from autopar.solver import readable
from cost_models.hardware import load
from tests.pipeline.build.cases import compiler_of

MESH, HARDWARE, SETTINGS = Mesh.of(4), load("cpu"), Settings()


def graph_of(name: str) -> Graph:
    return source_of(*compiler_of(name, MESH, HARDWARE, layers=3)).parted(4)


def wanted_of(stages: int) -> PipelineSpec:
    return PipelineSpec.of(MESH, Pipeline(stages, "1f1b", 4))


def step_s(made: Staged) -> float:
    return predict(made.plan, made.stages, HARDWARE, SETTINGS).step_s


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["gpt2", pytest.param("llama", marks=pytest.mark.slow)])
@pytest.mark.parametrize("stages", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_best_that_was_tried_is_taken_and_the_others_are_told(name: str, stages: int) -> None:
    graph, wanted = graph_of(name), wanted_of(stages)
    made = compile_forced(graph, MESH, HARDWARE, SETTINGS, wanted)
    prediction = made.plan.prediction
    assert prediction is not None and prediction.step_s == step_s(made)
    steps = {each.what: each.step_s for each in prediction.compared}
    assert 1 < len(steps) <= forced.MOST
    assert steps[f"cut at {', '.join(made.plan.cuts)}"] == prediction.step_s
    least = min(step for step in steps.values() if step is not None)
    assert prediction.step_s == pytest.approx(least)
    equal = compile_pipeline(graph, MESH, HARDWARE, SETTINGS, wanted)
    assert steps[f"cut at {', '.join(equal.plan.cuts)}"] == step_s(equal)


@pytest.mark.slow
def test_equal_flops_are_not_always_the_best() -> None:
    """A loss over many words takes a CPU longer than its FLOPs say."""
    graph, wanted = graph_of("llama"), wanted_of(4)
    made = compile_forced(graph, MESH, HARDWARE, SETTINGS, wanted)
    equal = compile_pipeline(graph, MESH, HARDWARE, SETTINGS, wanted)
    assert step_s(made) < step_s(equal)


def test_cuts_of_ones_own_are_taken() -> None:
    graph = graph_of("gpt2")
    cuts = balanced(graph, [3.0, 1.0])
    made = compile_forced(graph, MESH, HARDWARE, SETTINGS, replace(wanted_of(2), cuts=cuts))
    assert made.plan.cuts == cuts
    assert made.plan.prediction is not None and not made.plan.prediction.compared


@pytest.mark.slow
def test_what_does_not_fit_is_passed_over() -> None:
    """Of all cuts but the first."""
    graph, wanted = graph_of("llama"), wanted_of(4)
    first = compile_pipeline(graph, MESH, HARDWARE, SETTINGS, wanted).plan.cuts

    def fits(
        _graph: Graph,
        _mesh: Mesh,
        _hardware: object,
        _settings: object,
        asked: PipelineSpec,
        *others: object,
    ) -> Staged:
        if asked.cuts != first:
            raise InfeasibleError("too large")
        return compile_pipeline(graph, MESH, HARDWARE, SETTINGS, asked)

    with mock.patch.object(forced, "compile_pipeline", fits):
        made = compile_forced(graph, MESH, HARDWARE, SETTINGS, wanted)
    assert made.plan.cuts == first and made.plan.prediction is not None
    steps = [each.step_s for each in made.plan.prediction.compared]
    assert len(steps) > 1 and steps[0] is not None and set(steps[1:]) == {None}


@pytest.mark.slow
def test_stages_share_a_workers_memory_by_what_they_need() -> None:
    """Two of a V are unequal, and their peaks need not come together."""
    graph, wanted = graph_of("llama"), PipelineSpec.of(Mesh.of(2), Pipeline(2, "zb-v", 4))
    wanted = replace(wanted, cuts=balanced(graph, [8.0, 1.0, 1.0, 2.0]))

    def made(memory: float | None) -> tuple[Staged, tuple[float, ...]]:
        settings = Settings(memory_limit=memory, recompute="none")
        found = compile_forced(graph, Mesh.of(2), HARDWARE, settings, wanted)
        return found, predict_with_peaks(found.plan, found.stages, HARDWARE, settings)[1]

    free, peaks = made(None)
    assert free.plan.prediction is not None
    limit = 1.001 * max(peaks)
    assert max(each.nbytes for each in free.plan.prediction.stages) > limit / 2
    fitting, found = made(limit)
    assert max(found) <= limit
    assert fitting.plan.prediction is not None
    assert fitting.plan.prediction.step_s == pytest.approx(free.plan.prediction.step_s)
    with pytest.raises(OverLimitError, match=r"fits 1000 bytes per device"):
        made(1000.0)


@pytest.mark.slow
def test_a_larger_limit_is_never_too_small() -> None:
    """All of these are too small for equal shares, some for as much as each stage would like."""
    graph, wanted = graph_of("llama"), PipelineSpec.of(Mesh.of(2), Pipeline(2, "zb-v", 4))
    wanted = replace(wanted, cuts=balanced(graph, [8.0, 1.0, 1.0, 2.0]))
    free = compile_forced(graph, Mesh.of(2), HARDWARE, Settings(), wanted)
    most = max(predict_with_peaks(free.plan, free.stages, HARDWARE, Settings())[1])
    for share in (0.9, 0.8, 0.6):
        limited = Settings(memory_limit=share * most)
        made = compile_forced(graph, Mesh.of(2), HARDWARE, limited, wanted)
        _, found = predict_with_peaks(made.plan, made.stages, HARDWARE, limited)
        assert max(found) <= share * most
    with pytest.raises(OverLimitError) as refused:
        compile_forced(graph, Mesh.of(2), HARDWARE, Settings(memory_limit=0.5 * most), wanted)
    assert readable(0.5 * most) in str(refused.value)
    assert refused.value.least_nbytes > 0.5 * most


@pytest.mark.slow
def test_stages_take_the_memory_that_equal_shares_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within equal shares blocks run again, though the stages of a worker fit together without that."""
    graph, wanted = graph_of("llama"), PipelineSpec.of(Mesh.of(2), Pipeline(2, "zb-v", 4))
    wanted = replace(wanted, cuts=balanced(graph, [3.0, 2.0, 2.0, 3.0]))
    free = compile_forced(graph, Mesh.of(2), HARDWARE, Settings(), wanted)
    _, peaks = predict_with_peaks(free.plan, free.stages, HARDWARE, Settings())
    limited = Settings(memory_limit=1.001 * max(peaks))

    def found() -> tuple[float, float]:
        made = compile_forced(graph, Mesh.of(2), HARDWARE, limited, wanted)
        step, most = predict_with_peaks(made.plan, made.stages, HARDWARE, limited)
        return step.step_s, max(most)

    assert free.plan.prediction is not None
    step, most = found()
    assert step <= 1.02 * free.plan.prediction.step_s and most <= 1.001 * max(peaks)
    monkeypatch.setattr(forced, "TRIES", 0)
    assert found()[0] > step
