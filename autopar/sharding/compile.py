"""Compiles a captured graph into a plan and its Python source.

This is the top level of the planner.  It needs no processes and no weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from autopar import rules
from autopar.capture.saved import saved as kept_of
from autopar.errors import InfeasibleError
from autopar.ir.blocks import MODES
from autopar.ir.graph import Graph, Saved
from autopar.ir.mesh import Mesh
from autopar.ir.placement import S, Sharding
from autopar.plans.decisions import Conversion
from autopar.plans.plan import Plan
from autopar.sharding.in_flight import InFlightPlanner
from autopar.sharding.limited import within
from autopar.sharding.padded import best_padded
from autopar.sharding.sharding_problem import (
    Compilation,
    Settings,
    ShardingProblem,
    batch_inputs,
    pose,
)
from autopar.solver import hull
from autopar.utils.progress import Watch, alone, unwatched
from cost_models.hardware import Hardware


def compile_graph(
    graph: Graph,
    mesh: Mesh,
    hardware: Hardware,
    settings: Settings,
    saved: Mapping[str, Saved],
    below: float = math.inf,
    known: InFlightPlanner | None = None,
) -> Compilation:
    """Return the best plan within the memory limit, if one is set; pad sizes where that pays.

    Raise `InfeasibleError` if nothing fits, or, without a search, if the lower bound shows that no plan
    takes less than `below` seconds.  `known`: the planner of the unpadded graph.
    """

    def compiled(graph: Graph, kept: Mapping[str, Saved] | None) -> Compilation:
        flights = None if kept is None else known
        if flights is None:
            kept = kept_of(graph, hardware.device.kind) if kept is None else kept
            flights = InFlightPlanner(graph, mesh, hardware, settings, kept)
        if not flights.may_take_less(below, settings.in_flight):
            raise InfeasibleError(f"No plan within the limit takes less than {below:.4g} s.")
        posed, plan = flights.plan(settings.in_flight)
        return posed.emitted(plan)

    return best_padded(graph, mesh, settings, saved, compiled)


def best_plan(
    plain: ShardingProblem, richer: Callable[[], ShardingProblem]
) -> tuple[ShardingProblem, Plan]:
    """Return the best plan and its problem: `richer` if the best plan of `plain` exceeds the limit."""
    free, limit = plain.plan(plain.solve()), plain.settings.memory_limit
    if limit is None or free.estimate.memory_nbytes <= limit:
        return plain, free
    rich = richer()
    found, _ = within(rich, limit)
    return rich, found


def frontier(
    graph: Graph,
    mesh: Mesh,
    hardware: Hardware,
    settings: Settings,
    saved: Mapping[str, Saved],
    watch: Watch = unwatched,
) -> tuple[Compilation, ...]:
    """Return plans from the fastest to the smallest: the corners of the solver's convex hull.

    Plans that another plan beats in both time and memory, as estimated for whole plans, are left out.
    """
    posed = alone(partial(_unlimited, graph, mesh, hardware, settings, saved), watch, "pricing")
    corners = hull(posed.priced.problem, watch)
    every = watch(map(posed.compilation, corners), len(corners), "planning")
    kept: list[Compilation] = []
    for made in sorted(every, key=lambda made: made.plan.estimate.step_s):
        if not kept or made.plan.estimate.memory_nbytes < kept[-1].plan.estimate.memory_nbytes:
            kept.append(made)
    return tuple(kept)


def _unlimited(
    graph: Graph, mesh: Mesh, hardware: Hardware, settings: Settings, saved: Mapping[str, Saved]
) -> ShardingProblem:
    """Return the problem without a memory limit, on the fastest padding, with recomputation allowed."""
    modes = MODES if settings.recompute is None else None
    free = replace(settings, memory_limit=None)
    graph = compile_graph(graph, mesh, hardware, free, saved).graph
    return pose(graph, mesh, hardware, free, kept_of(graph, hardware.device.kind), modes)


def batch_form(plan: Plan, graph: Graph) -> Sharding:
    """Return the sharding to which a plan for whole batches slices its batch inputs (dim 0)."""
    inputs = {node.outputs[0].name for node in batch_inputs(graph)}
    sliced = {c.axis for c in plan.conversions if c.tensor in inputs and _is_batch_slice(c)}
    return next(
        form
        for form in rules.batch_forms(plan.mesh)
        if {axis for _, axis in form.cuts(0)} == sliced
    )


def arriving(plan: Plan, graph: Graph) -> Sharding | None:
    """Return the sharding in which the batch arrives under a plan; None if it arrives replicated."""
    forms = (plan.choice[node.name].outputs[0] for node in batch_inputs(graph))
    return next((form for form in forms if form.is_split), None)


def _is_batch_slice(conversion: Conversion) -> bool:
    target = conversion.target[conversion.axis]
    return isinstance(target, S) and target.dim == 0
