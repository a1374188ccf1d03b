"""A pipeline's figures beside those of a plan without stages: of its busiest worker, and its fullest."""

from __future__ import annotations

from autopar.compile.automatic import source_of
from autopar.ir.mesh import Mesh
from autopar.pipeline.build.forced import compile_forced
from autopar.pipeline.build.pipeline_spec import PipelineSpec
from autopar.pipeline.build.staged import Staged
from autopar.plans.changes import Figures
from autopar.request.pipeline import Pipeline
from autopar.sharding.sharding_problem import Settings
from cost_models.hardware import load
from tests.pipeline.build.cases import compiler_of

MESH, MICROBATCHES = Mesh.of(4), 4


def piped() -> Staged:
    hardware = load("cpu")
    graph = source_of(*compiler_of("llama", MESH, hardware, layers=2)).parted(MICROBATCHES)
    wanted = PipelineSpec.of(MESH, Pipeline(2, "1f1b", MICROBATCHES))
    return compile_forced(graph, MESH, hardware, Settings(), wanted)


def test_its_figures_are_of_a_step_and_add_up() -> None:
    plan = piped().plan
    assert plan.prediction is not None
    idle = plan.prediction.bubbles
    busiest = plan.of[idle.index(min(idle)), idle.index(min(idle))].estimate
    figures: Figures = plan.outline.figures
    time = {name: value for (kind, name), value in figures.items() if kind == "time"}
    assert busiest.parts is not None
    assert time["compute, forward"] == MICROBATCHES * busiest.parts.forward_s
    assert time["compute, backward"] == MICROBATCHES * busiest.parts.backward_s
    assert time["compute, update"] == busiest.parts.update_s
    parts = [value for name, value in time.items() if name.startswith("compute, ")]
    assert abs(time["compute"] - sum(parts)) < 1e-12
    sent = sum(value for (kind, _), value in figures.items() if kind == "communication")
    assert abs(time["communication, exposed"] + time["communication, hidden"] - sent) < 1e-12
    busy_s = plan.prediction.step_s * (1.0 - min(idle))
    # Sends and sums of gradients come on top.
    assert 0.75 * busy_s < time["compute"] + time["communication, exposed"] < busy_s
    held = {name: value for (kind, name), value in figures.items() if kind == "memory"}
    of_fullest = [value for name, value in held.items() if name != "peak" and "worker" not in name]
    assert sum(of_fullest) == held["peak"] == max(held["on worker 0"], held["on worker 1"])
