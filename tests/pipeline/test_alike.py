"""Stages that differ in names only are planned together, and come out as if they were planned alone."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from unittest import mock

import pytest

from autopar.capture import capture
from autopar.capture.saved import saved
from autopar.errors import InfeasibleError
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.ir.split import Stages, split
from autopar.pipeline.build.nameless import nameless, renamed
from autopar.pipeline.build.stage_compiler import StageCompiler, StageRequest
from autopar.request import presets
from autopar.request.constraints import from_user
from autopar.sharding.compile import compile_graph
from autopar.sharding.in_flight import InFlightPlanner
from autopar.sharding.limited import within
from autopar.sharding.sharding_problem import Settings
from autopar.solver.gap_tolerance import FAIR
from cost_models.hardware import load
from tests import models
from tests.daily import daily

HARDWARE = load("a100")
MESH = Mesh.of(2)
SETTINGS = Settings(padding=(), pads_batch=False, microbatches=8)


@cache
def whole(name: str = "gpt2") -> Graph:
    model, inputs, loss = getattr(models, name)(layers=6)
    return capture(model, inputs, loss=loss)


@cache
def stages(name: str = "gpt2") -> Stages:
    """The first block; twice two blocks; the last one."""
    operator = {"gpt2": "ln_1", "llama": "input_layernorm"}[name]
    graph = whole(name)
    firsts = [
        next(n.name for n in graph.nodes if f".{block}.{operator}" in n.origin.module)
        for block in (1, 3, 5)
    ]
    return split(graph, firsts)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_inner_stages_differ_in_names_only(name: str) -> None:
    first, one, two, last = map(nameless, stages(name).graphs)
    assert one == two
    assert len({first, one, last}) == 3


def test_what_is_computed_makes_a_difference() -> None:
    part = stages().graphs[1]
    node = next(n for n in part.nodes if n.op.startswith("aten.layer_norm"))
    changed = replace(node, args=(*node.args[:-2], 0.5, *node.args[-1:]))
    nodes = tuple(changed if n is node else n for n in part.nodes)
    assert nameless(replace(part, nodes=nodes)) != nameless(part)
    longer = replace(node.outputs[0], shape=(1, *node.outputs[0].shape))
    nodes = tuple(replace(n, outputs=(longer,)) if n is node else n for n in part.nodes)
    assert nameless(replace(part, nodes=nodes)) != nameless(part)
    assert nameless(replace(part, sends=())) != nameless(part)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_renamed_plan_is_that_of_the_stage_itself(name: str) -> None:
    _, one, two, _ = stages(name).graphs
    alone = compile_graph(two, MESH, HARDWARE, SETTINGS, saved(two)).plan
    other = compile_graph(one, MESH, HARDWARE, SETTINGS, saved(one)).plan
    assert other != alone
    assert renamed(other, one, two) == alone


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_stages_under_a_preset_are_planned_together(name: str) -> None:
    """Its patterns match the same places of both; a constraint of the user's names one of them."""
    _, one, two, last = stages(name).graphs
    forced = presets.load("megatron_sp", MESH)
    settings = replace(SETTINGS, preset="megatron_sp", constraints=forced)
    requests = [StageRequest(part, MESH, settings) for part in (one, two, last)]
    assert requests[0].kind == requests[1].kind != requests[2].kind
    compiler = StageCompiler(HARDWARE, saved(whole(name)))
    plans = [compiler.compiled(each)[0] for each in requests[:2]]
    alone = StageCompiler(HARDWARE, saved(whole(name))).compiled(requests[1])[0]
    assert plans[1] == alone and len(compiler._known) == 1
    mine = from_user({f"stored:{two.leaves('parameter')[0].target}": {"x": "I"}}, MESH)
    named = replace(settings, constraints=(*forced, *mine))
    asked = [StageRequest(part, MESH, named).kind for part in (one, two)]
    assert asked[0] != asked[1]
    fewer = replace(settings, constraints=(replace(forced[0], pattern="*.3.*"), *forced[1:]))
    asked = [StageRequest(part, MESH, fewer).kind for part in (one, two)]
    assert asked[0] != asked[1], "a pattern that matches a layer of one of them"


@pytest.mark.thorough
@pytest.mark.parametrize("share", daily([2.0, 0.95], [0.95]))
def test_stages_planned_together_are_as_good_as_alone(share: float) -> None:
    """Whatever is in flight; where memory is short the one with fewer in flight is no slower."""
    kept = saved(whole())
    free = compile_graph(stages().graphs[1], MESH, HARDWARE, SETTINGS, kept).plan.estimate
    limit = share * (free.memory_nbytes + 2 * free.activation_nbytes)
    alike = StageCompiler(HARDWARE, kept)
    slowest = None
    for part, in_flight in zip(stages().graphs[1:3], (3, 2), strict=True):
        settings = replace(SETTINGS, memory_limit=limit, in_flight=in_flight)
        plan, source = alike.compiled(StageRequest(part, MESH, settings))
        alone = compile_graph(part, MESH, HARDWARE, settings, kept)
        plan.check(part)
        assert plan.estimate.in_flight == in_flight
        assert plan.estimate.memory_nbytes <= limit
        assert plan.bound_s == pytest.approx(alone.plan.bound_s)
        assert plan.objective_s <= 1.01 * alone.plan.objective_s
        assert slowest is None or plan.objective_s <= slowest
        assert part.leaves("parameter")[0].target.split(".")[2] in source
        slowest = plan.objective_s


@pytest.mark.slow
def test_too_little_memory_is_refused() -> None:
    part = stages().graphs[1]
    alike = StageCompiler(HARDWARE, saved(whole()))
    with pytest.raises(InfeasibleError):
        alike.compiled(StageRequest(part, MESH, replace(SETTINGS, memory_limit=1e3)))


@pytest.mark.slow
def test_what_lies_between_few_and_many_in_flight_is_not_searched_for() -> None:
    """Every plan fits, and none is far from what a search of its own finds."""
    kept, part = saved(whole()), stages().graphs[1]
    free = compile_graph(part, MESH, HARDWARE, SETTINGS, kept).plan.estimate
    limit = 0.97 * (free.memory_nbytes + 3 * free.activation_nbytes)
    limited = replace(SETTINGS, memory_limit=limit)
    flights = InFlightPlanner(part, MESH, HARDWARE, limited, kept)
    with mock.patch("autopar.sharding.in_flight.within", wraps=within) as searches:
        plans = {many: flights.plan(many)[1] for many in range(6, 0, -1)}
    assert 0 < searches.call_count < 6
    for many, plan in plans.items():
        assert plan.estimate.in_flight == many
        assert plan.estimate.memory_nbytes <= limit
        if many not in (2, 4):
            continue
        alone = InFlightPlanner(part, MESH, HARDWARE, limited, kept).plan(many)[1]
        assert plan.bound_s <= alone.objective_s * (1 + 1e-9)
        assert plan.objective_s <= (1 + 2 * FAIR.wide) * alone.objective_s
