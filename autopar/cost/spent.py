"""What a stage of a pipeline spends, by action: forward, input gradient, weight gradient, once a step.

The same quantities as `estimate`, divided otherwise: what is spent per microbatch and once a step add up
to its step, and bytes to its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType

from autopar.cost.calls import flows_of
from autopar.cost.covering import covering
from autopar.cost.estimate import hideable_by_axis, storage_bytes, update_seconds, working
from autopar.cost.issued import Copied, Running, Sent, by_parameter
from autopar.cost.laid import laid_at_use, laid_once
from autopar.cost.operators import OperatorSeconds, operator_seconds
from autopar.cost.parameters import gradient_shares, summed_seconds
from autopar.cost.prices import Prices
from autopar.ir.conversion import Direction
from autopar.ir.graph import Graph, Node, Ref, Saved, short
from autopar.memory.of_rank import of_rank
from autopar.memory.recompute_set import RecomputeSet, again
from autopar.memory.saved_tensors import SavedTensors
from autopar.memory.timeline import MemoryTimeline
from autopar.plans.decisions import Choice, OpSharding, ParameterPlan
from autopar.plans.plan import Plan

SecondsOf = Callable[[Node, OpSharding, Graph, Prices], OperatorSeconds]
_PUT_OFF = MappingProxyType({"linear": (0, 1), "addmm": (1, 2), "matmul": (0, 1), "mm": (0, 1)})
"""Products whose weight's gradient the runtime computes apart, where schedules ask for it: places of
what is multiplied, and of the weight."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds and bytes of one stage on one rank.

    forward_s, input_grad_s, weight_grad_s   of one microbatch
    split_s        more of the input gradient, where the weight gradient is computed apart
    exposed_s      once a step: parameters that are gathered, later reductions, updates
    hideable_s     once a step: the first reduction of gradients, beside the last backward
    covers_s       how much of it that backward can hide
    rest_nbytes    parameters, gradients, states of the optimizer
    kept_nbytes    for each microbatch in flight
    working_nbytes at the highest point of a step, beside what one microbatch keeps
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
    split_s: float = 0.0

    @property
    def microbatch_s(self) -> float:
        """Forward and whole backward."""
        return self.forward_s + self.input_grad_s + self.weight_grad_s

    @property
    def hidden_s(self) -> float:
        """Of the reduction, what the last backward hides."""
        return min(self.hideable_s, self.covers_s)

    @property
    def once_s(self) -> float:
        """What a step has to wait for, once."""
        return self.exposed_s + self.hideable_s - self.hidden_s


@dataclass(frozen=True, slots=True)
class Once:
    """What a step takes once, whatever the size of its batch."""

    exposed_s: float
    hideable_s: float
    rest_nbytes: float
    beside: Mapping[str, float]
    """Of each operator's backward, the share that may hide sums of gradients."""
    summed_s: float = 0.0
    """Each microbatch but the first: its weights' gradients are added to those before."""


@dataclass(frozen=True, slots=True)
class Issued:
    """What a microbatch sends, and copies instead; what its backward needs."""

    sent: tuple[Sent, ...]
    copied: tuple[Copied, ...]
    kept_nbytes: float
    working_nbytes: float


def spent_by(plan: Plan, graph: Graph, prices: Prices, saved: Mapping[str, Saved]) -> Spent:
    """What a finished plan spends."""
    shardings = {c.node: c.sharding for c in plan.choices}
    saved = of_rank(saved, graph, shardings, plan.conversions, prices.mesh)
    run_again = again(
        graph, shardings, plan.conversions, plan.recompute_of, saved, prices.mesh, plan.precision
    )
    keeps = SavedTensors(
        graph, shardings, plan.conversions, prices.mesh, saved, run_again, plan.precision
    )
    return spent(
        graph,
        plan.choices,
        issued(graph, plan.choices, keeps, prices, plan.precision),
        once(graph, plan.parameters, prices, plan.precision),
        run_again,
        prices,
        prices.microbatches,
    )


def once(
    graph: Graph, parameters: tuple[ParameterPlan, ...], prices: Prices, precision: str
) -> Once:
    """Parameters that are gathered, gradients that are reduced, updates; what rests."""
    of_parameters = tuple(by_parameter(graph, parameters, prices.mesh, precision))
    sent = tuple(part for parts in of_parameters for part in parts)
    shares = gradient_shares(graph, prices)
    flows = tuple(flows_of(sent, "step", prices, shares))
    hideable = sum(hideable_by_axis(graph, parameters, prices, precision, shares).values())
    updates = update_seconds(graph, parameters, prices)
    updates += laid_once(of_parameters, prices, shares).total_s
    leaf = {node.target: node.outputs[0] for node in graph.leaves("parameter")}
    return Once(
        sum(flow.seconds for flow in flows) - hideable + updates,
        hideable,
        sum(storage_bytes(leaf[p.name], p, prices, graph).total for p in parameters),
        covering(graph, shares),
        sum(summed_seconds(leaf[p.name], p.leaf, prices) for p in parameters),
    )


def issued(
    graph: Graph, choices: tuple[Choice, ...], keeps: SavedTensors, prices: Prices, precision: str
) -> Issued:
    """What a microbatch sends, copies and keeps."""
    running = Running(graph, choices, keeps.conversions, prices.mesh, precision, keeps.again)
    return Issued(
        tuple(running.per_microbatch()),
        tuple(running.copies()),
        keeps.nbytes(),
        working(MemoryTimeline(keeps)),
    )


def spent(
    graph: Graph,
    choices: tuple[Choice, ...],
    of_microbatch: Issued,
    of_step: Once,
    run_again: RecomputeSet,
    prices: Prices,
    microbatches: int,
    seconds_of: SecondsOf = operator_seconds,
) -> Spent:
    """What a graph under these decisions spends in one of so many microbatches, on average.

    `seconds_of` may remember what it was asked before.
    """
    made_of_weights = _made_of_weights(graph)
    forward = weights = compute = covers = 0.0
    products = 0
    for choice in choices:
        node = graph.node[choice.node]
        each = seconds_of(node, choice.sharding, graph, prices)
        backward = each.backward_s + (each.forward_s if node.name in run_again.computed else 0.0)
        forward += each.forward_s
        compute += backward
        covers += of_step.beside[choice.node] * backward
        late = _put_off(node, graph, run_again, made_of_weights)
        weights += each.backward_s * late
        products += late > 0
    weights += of_step.summed_s * (1.0 - 1.0 / microbatches)
    total = forward + compute + of_step.summed_s * (1.0 - 1.0 / microbatches)
    for direction, of_weights, seconds in _converting(of_microbatch, prices):
        total += seconds
        if direction == "forward":
            forward += seconds
        elif of_weights:
            weights += seconds
    return Spent(
        forward_s=forward,
        input_grad_s=total - forward - weights,
        weight_grad_s=weights,
        exposed_s=of_step.exposed_s,
        hideable_s=of_step.hideable_s,
        covers_s=prices.covering_share * covers,
        rest_nbytes=of_step.rest_nbytes,
        kept_nbytes=of_microbatch.kept_nbytes,
        working_nbytes=of_microbatch.working_nbytes,
        split_s=prices.split(products),
    )


def _converting(of_microbatch: Issued, prices: Prices) -> Iterator[tuple[Direction, bool, float]]:
    """Seconds of every collective, laid out and taken apart, and of every copy; whether of weights."""
    for sent in of_microbatch.sent:
        seconds = prices.awaited(sent.traffic) + laid_at_use([sent], prices).total_s
        yield sent.traffic.direction, sent.weights > 0, seconds
    for copied in of_microbatch.copied:
        yield copied.copy.direction, copied.of_weight, prices.local(copied.copy)


def _put_off(node: Node, graph: Graph, run_again: RecomputeSet, of_weights: Set[str]) -> float:
    """The share of an operator's backward that computes a weight's gradient, and may be put off.

    It is one of two products of equal size; a bias is summed at once.  A block that is recomputed puts
    nothing off.
    """
    places = _PUT_OFF.get(short(node.op), ())
    read = [node.args[place] for place in places]
    if not read or node.name in run_again.node_names:
        return 0.0
    x, weight = (graph.tensors[each.name] for each in read if isinstance(each, Ref))
    flow = x.differentiable and weight.differentiable
    return 0.5 if flow and len(weight.shape) == 2 and weight.name in of_weights else 0.0


def _made_of_weights(graph: Graph) -> Set[str]:
    """Tensors that are parameters, or made of parameters only."""
    found: set[str] = set()
    for node in graph.nodes:
        flows = [name for name in node.operands if graph.tensors[name].differentiable]
        if node.op == "parameter" or (flows and found.issuperset(flows)):
            found.update(tensor.name for tensor in node.outputs)
    return found
