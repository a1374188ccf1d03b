"""Cost of a pipeline stage by action: forward, input gradient, weight gradient, once per step.

These are the quantities of `estimate`, divided differently: costs per microbatch and once per step add
up to its step, and bytes to its memory.
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
"""Products whose weight gradient the runtime can defer, as zero-bubble schedules require: argument
positions of the input and of the weight."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds and bytes of one stage on one rank.

    forward_s, input_grad_s, weight_grad_s   of one microbatch
    split_s        added to the input gradient if the weight gradient is computed separately
    exposed_s      once per step: parameter gathers, later reductions, updates
    hideable_s     once per step: the first gradient reductions, which may overlap the last backward
    covers_s       the seconds of them that this backward can hide
    rest_nbytes    parameters, gradients, optimizer state
    kept_nbytes    saved activations of each microbatch in flight
    working_nbytes peak memory of a step minus `kept_nbytes` of one microbatch
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
        """Forward and the whole backward."""
        return self.forward_s + self.input_grad_s + self.weight_grad_s

    @property
    def hidden_s(self) -> float:
        """The seconds of reductions that the last backward hides."""
        return min(self.hideable_s, self.covers_s)

    @property
    def once_s(self) -> float:
        """The visible seconds once per step."""
        return self.exposed_s + self.hideable_s - self.hidden_s


@dataclass(frozen=True, slots=True)
class Once:
    """Costs once per step, independent of the batch size."""

    exposed_s: float
    hideable_s: float
    rest_nbytes: float
    beside: Mapping[str, float]
    """For each operator, the share of its backward that may hide gradient reductions."""
    summed_s: float = 0.0
    """Gradient accumulation of each microbatch but the first."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A microbatch's collectives, local copies, saved activations and working set."""

    sent: tuple[Sent, ...]
    copied: tuple[Copied, ...]
    kept_nbytes: float
    working_nbytes: float


def spent_by(plan: Plan, graph: Graph, prices: Prices, saved: Mapping[str, Saved]) -> Spent:
    """Return the costs of a finished plan."""
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
    """Return the costs once per step: parameter gathers, gradient reductions, updates, memory."""
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
    """Return a microbatch's collectives, local copies, saved activations and working set."""
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
    """Return the costs of a graph under these decisions, averaged over `microbatches` microbatches.

    `seconds_of` may be a memoised `operator_seconds`.
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
    """Yield (direction, whether a weight's, seconds) of every collective, packed, and every copy."""
    for sent in of_microbatch.sent:
        seconds = prices.awaited(sent.traffic) + laid_at_use([sent], prices).total_s
        yield sent.traffic.direction, sent.weights > 0, seconds
    for copied in of_microbatch.copied:
        yield copied.copy.direction, copied.of_weight, prices.local(copied.copy)


def _put_off(node: Node, graph: Graph, run_again: RecomputeSet, of_weights: Set[str]) -> float:
    """Return the share of an operator's backward that computes a weight gradient and can be deferred.

    It is one of two products of equal size; a bias gradient is not deferred.  Recomputed blocks defer
    nothing.
    """
    places = _PUT_OFF.get(short(node.op), ())
    read = [node.args[place] for place in places]
    if not read or node.name in run_again.node_names:
        return 0.0
    x, weight = (graph.tensors[each.name] for each in read if isinstance(each, Ref))
    flow = x.differentiable and weight.differentiable
    return 0.5 if flow and len(weight.shape) == 2 and weight.name in of_weights else 0.0


def _made_of_weights(graph: Graph) -> Set[str]:
    """Return the parameters, and the tensors whose differentiable operands all derive from them."""
    found: set[str] = set()
    for node in graph.nodes:
        flows = [name for name in node.operands if graph.tensors[name].differentiable]
        if node.op == "parameter" or (flows and found.issuperset(flows)):
            found.update(tensor.name for tensor in node.outputs)
    return found
