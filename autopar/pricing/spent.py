"""What a stage of a pipeline spends, by action: forward, input gradient, weight gradient, once a step.

The same quantities as `estimate`, divided otherwise: what is spent per microbatch and once a step add up
to its step, and bytes to its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autopar.blocks import Recompute
from autopar.graph import Graph, Node, Saved, short
from autopar.plan import Choice, Conversion, OpSharding, ParameterPlan, Plan
from autopar.pricing.estimate import (
    flows_of,
    hideable_seconds,
    largest_working,
    per_microbatch,
    per_step,
    storage_bytes,
    update_seconds,
)
from autopar.pricing.keeps import Keeps
from autopar.pricing.operators import OperatorSeconds, operator_seconds
from autopar.pricing.prices import Prices
from autopar.pricing.recomputed import Again, again

SecondsOf = Callable[[Node, OpSharding, Graph, Prices], OperatorSeconds]
_PUT_OFF = frozenset(["linear", "addmm", "matmul", "mm"])
"""Products whose weight's gradient the runtime computes apart, where schedules ask for it."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds and bytes of one stage on one rank.

    forward_s, input_grad_s, weight_grad_s   of one microbatch
    exposed_s      once a step: parameters that are gathered, later reductions, updates
    hideable_s     once a step: the first reduction of gradients, beside the last backward
    covers_s       how much of it that backward can hide
    rest_nbytes    parameters, gradients, states of the optimizer
    kept_nbytes    for each microbatch in flight
    working_nbytes while the largest operator runs
    """

    forward_s: float
    input_grad_s: float
    weight_grad_s: float
    exposed_s: float
    hideable_s: float
    covers_s: float
    rest_nbytes: float
    kept_nbytes: float
    working_nbytes: float

    @property
    def microbatch_s(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.input_grad_s + self.weight_grad_s

    @property
    def hidden_s(self) -> float:
        """Of the reduction, what the last backward hides."""
        return min(self.hideable_s, self.covers_s)

    @property
    def once_s(self) -> float:
        """What a step has to wait for, once."""
        return self.exposed_s + self.hideable_s - self.hidden_s


def spent_by(plan: Plan, graph: Graph, prices: Prices, saved: Mapping[str, Saved]) -> Spent:
    """What a finished plan spends."""
    return spent(
        graph, plan.choices, plan.parameters, plan.conversions, prices, saved, plan.precision,
        plan.recompute_of,
    )  # fmt: skip


def spent(
    graph: Graph,
    choices: tuple[Choice, ...],
    parameters: tuple[ParameterPlan, ...],
    conversions: tuple[Conversion, ...],
    prices: Prices,
    saved: Mapping[str, Saved],
    precision: str,
    recompute: Mapping[str, Recompute],
    seconds_of: SecondsOf = operator_seconds,
) -> Spent:
    """What a graph under these decisions spends; `seconds_of` may remember what it was asked before."""
    mesh = prices.mesh
    shardings = {c.node: c.sharding for c in choices}
    run_again = again(graph, shardings, conversions, recompute, saved, mesh, precision)
    forward = weights = compute = 0.0
    for choice in choices:
        node = graph.node[choice.node]
        each = seconds_of(node, choice.sharding, graph, prices)
        backward = each.backward_s + (each.forward_s if node.name in run_again.computed else 0.0)
        forward += each.forward_s
        compute += backward
        weights += each.backward_s * _put_off(node, graph, run_again)
    total = forward + compute
    for name, part in per_microbatch(graph, choices, conversions, mesh, precision, run_again):
        seconds = prices.collective(part)
        total += seconds
        if part.direction == "forward":
            forward += seconds
        elif name in graph.producer and graph.producer[name].op == "parameter":
            weights += seconds
    flows = tuple(flows_of(per_step(graph, parameters, mesh, precision), "step", prices))
    hideable = hideable_seconds(graph, parameters, flows, prices, precision)
    leaf = {node.target: node.outputs[0] for node in graph.leaves("parameter")}
    keeps = Keeps(graph, shardings, conversions, mesh, saved, run_again)
    return Spent(
        forward_s=forward,
        input_grad_s=total - forward - weights,
        weight_grad_s=weights,
        exposed_s=sum(flow.seconds for flow in flows)
        - hideable
        + update_seconds(graph, parameters, prices),
        hideable_s=hideable,
        covers_s=prices.hidden_share * compute,
        rest_nbytes=sum(storage_bytes(leaf[p.name], p, prices).total for p in parameters),
        kept_nbytes=keeps.nbytes(),
        working_nbytes=largest_working(graph, choices, prices, keeps),
    )


def _put_off(node: Node, graph: Graph, run_again: Again) -> float:
    """The share of an operator's backward that computes weights' gradients, and may be put off.

    A block that is recomputed puts nothing off.
    """
    if short(node.op) not in _PUT_OFF or node.name in run_again.node_names:
        return 0.0
    flows = [graph.tensors[name] for name in node.operands if graph.tensors[name].differentiable]
    late = [t for t in flows if len(t.shape) == 2 and _is_weight(graph.producer[t.name], graph)]
    return len(late) / len(flows) if late and len(late) < len(flows) else 0.0


def _is_weight(node: Node, graph: Graph) -> bool:
    """Whether it is a parameter, or made of parameters only."""
    if node.op == "parameter":
        return True
    flows = [n for n in node.operands if graph.tensors[n].differentiable]
    return bool(flows) and all(_is_weight(graph.producer[name], graph) for name in flows)
