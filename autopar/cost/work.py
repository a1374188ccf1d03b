"""Counts the floating-point operations of a plan's step, as the cost model does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autopar.ir.graph import Graph, Saved
from autopar.memory.recompute_set import again
from autopar.plans.plan import Plan
from autopar.rules import backward_flops, flops


@dataclass(frozen=True, slots=True)
class StepFlops:
    """Operations of one microbatch, over all ranks; replicated work counts once."""

    forward: float
    backward: float
    again: float
    """Operations that recomputed blocks repeat."""

    @property
    def model(self) -> float:
        """Operations without recomputation, as in model FLOPs utilisation (MFU)."""
        return self.forward + self.backward

    @property
    def total(self) -> float:
        """Operations with recomputation."""
        return self.model + self.again


def step_flops(plan: Plan, graph: Graph, saved: Mapping[str, Saved]) -> StepFlops:
    """Return the operations of a finished plan's step."""
    shardings = {choice.node: choice.sharding for choice in plan.choices}
    run_again = again(
        graph, shardings, plan.conversions, plan.recompute_of, saved, plan.mesh, plan.precision
    )
    return StepFlops(
        sum(flops(node, graph) for node in graph.nodes),
        sum(backward_flops(node, graph) for node in graph.nodes),
        sum(flops(graph.node[name], graph) for name in run_again.computed),
    )
