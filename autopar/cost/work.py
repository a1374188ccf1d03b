"""The floating-point operations of a plan's step, as prices count them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autopar.ir.graph import Graph, Saved
from autopar.memory.recompute_set import again
from autopar.plans.plan import Plan
from autopar.rules import backward_flops, flops


@dataclass(frozen=True, slots=True)
class StepFlops:
    """Of one microbatch on all ranks together; what several ranks compute alike counts once."""

    forward: float
    backward: float
    again: float
    """What recomputed blocks run a second time."""

    @property
    def model(self) -> float:
        """Without recomputation: what a model's FLOPs utilisation (MFU) counts."""
        return self.forward + self.backward

    @property
    def total(self) -> float:
        """What the devices do."""
        return self.model + self.again


def step_flops(plan: Plan, graph: Graph, saved: Mapping[str, Saved]) -> StepFlops:
    """Of a finished plan."""
    shardings = {choice.node: choice.sharding for choice in plan.choices}
    run_again = again(
        graph, shardings, plan.conversions, plan.recompute_of, saved, plan.mesh, plan.precision
    )
    return StepFlops(
        sum(flops(node, graph) for node in graph.nodes),
        sum(backward_flops(node, graph) for node in graph.nodes),
        sum(flops(graph.node[name], graph) for name in run_again.computed),
    )
