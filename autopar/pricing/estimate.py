"""What one training step of a plan should cost: seconds by kind, bytes by kind, traffic exactly."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from autopar.blocks import Recompute
from autopar.buckets import buckets
from autopar.conversion import Traffic
from autopar.graph import ITEMSIZE, Graph, Saved, Tensor
from autopar.grouping import groups
from autopar.mesh import Mesh
from autopar.placement import Sharding
from autopar.plans.plan import (
    Choice,
    Conversion,
    Estimate,
    Flow,
    OpTime,
    ParameterPlan,
    Parts,
    Plan,
    reduction_dtype,
)
from autopar.pricing.keeps import Keeps
from autopar.pricing.moments import Moments
from autopar.pricing.operators import local_nbytes, operator_seconds
from autopar.pricing.parameters import Storage, StorageBytes, exchanges, storage_nbytes
from autopar.pricing.prices import Prices, regathered
from autopar.pricing.recomputed import Again, again
from autopar.rules import variant_traffic

Scope = Literal["step", "microbatch"]


@dataclass(frozen=True)
class TrafficOf:
    """All collectives of a training step: once per step, and once per microbatch."""

    step: tuple[Traffic, ...]
    microbatch: tuple[Traffic, ...]


def traffic(plan: Plan, graph: Graph, saved: Mapping[str, Saved]) -> TrafficOf:
    """Every collective that the plan will issue.  The run-time count equals it exactly."""
    shardings = {choice.node: choice.sharding for choice in plan.choices}
    run_again = again(
        graph, shardings, plan.conversions, plan.recompute_of, saved, plan.mesh, plan.precision
    )
    return _traffic(
        graph, plan.choices, plan.parameters, plan.conversions, plan.mesh, plan.precision, run_again
    )


def _traffic(
    graph: Graph,
    choices: tuple[Choice, ...],
    parameters: tuple[ParameterPlan, ...],
    conversions: tuple[Conversion, ...],
    mesh: Mesh,
    precision: str,
    run_again: Again,
) -> TrafficOf:
    sent = per_microbatch(graph, choices, conversions, mesh, precision, run_again)
    return TrafficOf(per_step(graph, parameters, mesh, precision), tuple(part for _, part in sent))


def per_step(
    graph: Graph, parameters: tuple[ParameterPlan, ...], mesh: Mesh, precision: str
) -> tuple[Traffic, ...]:
    """Every collective of parameters that are gathered, and gradients that are reduced, once a step."""
    issued = [
        part
        for parameter in parameters
        for c in parameter.steps
        for part in _issued(c, graph, mesh, precision)
    ]
    leaf = {node.target: node.outputs[0] for node in graph.leaves("parameter")}
    for parameter in parameters:
        tensor = leaf[parameter.name]
        wide = reduction_dtype(tensor.name, graph, precision)
        itemsize = 0 if wide is None else ITEMSIZE[wide]
        issued += exchanges(tensor, parameter.stored, mesh, itemsize)
    return tuple(issued)


def per_microbatch(
    graph: Graph,
    choices: tuple[Choice, ...],
    conversions: tuple[Conversion, ...],
    mesh: Mesh,
    precision: str,
    run_again: Again,
) -> list[tuple[str, Traffic]]:
    """Every collective of a microbatch, with a tensor or the operator for which it is issued."""
    sent = _together(graph, choices, conversions, mesh, precision, run_again)
    reached = graph.reached
    for choice in choices:
        node = graph.node[choice.node]
        issued = variant_traffic(choice.sharding.variant, node, choice.sharding, graph, mesh)
        goes_back = any(tensor.name in reached for tensor in node.outputs)
        sent += [(choice.node, p) for p in issued if goes_back or p.direction == "forward"]
        if choice.node in run_again.computed:
            sent += [(choice.node, part) for part in _once_more(issued)]
    return sent


def _once_more(issued: Iterable[Traffic]) -> list[Traffic]:
    """What a recomputation sends: the forward's collectives, in the backward."""
    return [replace(p, direction="backward") for p in issued if p.direction == "forward"]


def _together(
    graph: Graph,
    choices: tuple[Choice, ...],
    conversions: tuple[Conversion, ...],
    mesh: Mesh,
    precision: str,
    run_again: Again,
) -> list[tuple[str, Traffic]]:
    """The collectives of conversions, by tensor; weights of one block share theirs."""
    backward = _in_backward(graph, choices, conversions)
    found = groups(graph, conversions, mesh, precision)
    group_of = {(m.tensor, g.hop): i for i, g in enumerate(found) for m in g.members}
    hops: Counter[str] = Counter()
    calls: defaultdict[object, list[tuple[str, Traffic]]] = defaultdict(list)
    for place, conversion in enumerate(conversions):
        name = conversion.tensor
        alone = ("alone", place)
        traveller = group_of.get((name, hops[name]), alone)
        hops[name] += 1
        for part in _issued(conversion, graph, mesh, precision):
            if part.direction == "forward" or (name, conversion.target) in backward:
                calls[traveller, part.direction, part.collective].append((name, part))
            if place in run_again.conversions:
                for more in _once_more([part]):
                    calls[traveller, "again", part.collective].append((name, more))
    return [
        (parts[0][0], replace(parts[0][1], nbytes=sum(part.nbytes for _, part in parts)))
        for parts in calls.values()
    ]


def _in_backward(
    graph: Graph, choices: tuple[Choice, ...], conversions: tuple[Conversion, ...]
) -> set[tuple[str, Sharding]]:
    """The forms that get a gradient: read by an operator that gets one, or a result."""
    reached = graph.reached
    forms = {
        (name, form)
        for choice in choices
        for node in [graph.node[choice.node]]
        if any(tensor.name in reached for tensor in node.outputs)
        for name, form in zip(node.operands, choice.sharding.inputs, strict=True)
    }
    results = {name for name in graph.results if graph.tensors[name].differentiable}
    for conversion in reversed(conversions):
        is_read = (conversion.tensor, conversion.target) in forms
        if is_read or conversion.tensor in results:
            forms |= {
                (conversion.tensor, conversion.target),
                (conversion.tensor, conversion.source),
            }
    return forms


def _issued(conversion: Conversion, graph: Graph, mesh: Mesh, precision: str) -> Iterator[Traffic]:
    tensor = graph.tensors[conversion.tensor]
    step = conversion.step
    wide = reduction_dtype(conversion.tensor, graph, precision)
    factor = 1 if wide is None else ITEMSIZE[wide] // tensor.itemsize
    for part in step.traffic(tensor.shape, tensor.itemsize, mesh, tensor.differentiable):
        summed = part.direction == "backward" and part.collective != "all_gather"
        yield replace(part, nbytes=part.nbytes * factor) if summed else part
    if conversion.regather:
        yield from regathered(step, tensor, mesh)


def estimate(
    graph: Graph,
    choices: tuple[Choice, ...],
    parameters: tuple[ParameterPlan, ...],
    conversions: tuple[Conversion, ...],
    prices: Prices,
    saved: Mapping[str, Saved],
    precision: str,
    recompute: Mapping[str, Recompute],
    in_flight: int = 1,
) -> Estimate:
    """The predicted step of one microbatch on one rank; activations of so many are kept at once."""
    mesh = prices.mesh
    shardings = {c.node: c.sharding for c in choices}
    run_again = again(graph, shardings, conversions, recompute, saved, mesh, precision)
    issued = _traffic(graph, choices, parameters, conversions, mesh, precision, run_again)
    flows = (*flows_of(issued.step, "step", prices),
             *flows_of(issued.microbatch, "microbatch", prices))  # fmt: skip
    spent = {
        c.node: operator_seconds(graph.node[c.node], c.sharding, graph, prices) for c in choices
    }
    backward_s = sum(each.backward_s for each in spent.values())
    backward_s += sum(spent[name].forward_s for name in sorted(run_again.computed))
    forward_s = sum(each.forward_s for each in spent.values())
    covers_s = prices.hidden_share * backward_s
    for part in (*issued.step, *issued.microbatch):
        if part.direction == "forward":
            forward_s += prices.copied(part)
        else:
            backward_s += prices.copied(part)
    update_s = update_seconds(graph, parameters, prices)
    hideable = hideable_by_axis(graph, parameters, prices, precision)
    hidden_s = min(sum(hideable.values()), covers_s)
    leaf = {node.target: node.outputs[0] for node in graph.leaves("parameter")}
    bytes_of = [storage_bytes(leaf[p.name], p, prices, graph) for p in parameters]
    moments = Moments(Keeps(graph, shardings, conversions, mesh, saved, run_again))
    return Estimate(
        compute_s=forward_s + backward_s + update_s,
        exposed_s=sum(flow.seconds for flow in flows) - hidden_s,
        hidden_s=hidden_s,
        flows=flows,
        parameter_nbytes=sum(b.parameter for b in bytes_of),
        gradient_nbytes=sum(b.gradient for b in bytes_of),
        optimizer_nbytes=sum(b.optimizer for b in bytes_of),
        activation_nbytes=moments.keeps.nbytes(),
        working_nbytes=working(moments),
        in_flight=in_flight,
        operators=tuple(
            OpTime(
                name,
                spent[name].forward_s,
                spent[name].backward_s,
                spent[name].source,
                moment.forward_nbytes,
                moment.backward_nbytes,
            )
            for name, moment in moments.by_node().items()
        ),
        parts=Parts(forward_s, backward_s, update_s, tuple(hideable.items()), covers_s),
    )


def hideable_seconds(
    graph: Graph, parameters: tuple[ParameterPlan, ...], prices: Prices, precision: str
) -> float:
    """Of what is sent once a step, seconds of gradients' first collectives, but for the last bucket."""
    return sum(hideable_by_axis(graph, parameters, prices, precision).values())


def hideable_by_axis(
    graph: Graph, parameters: tuple[ParameterPlan, ...], prices: Prices, precision: str
) -> dict[str, float]:
    """The same on each axis that has any.  The last bucket is full when the backward ends."""
    issued: defaultdict[tuple[int, str], list[Traffic]] = defaultdict(list)
    for parameter in parameters:
        for part in _first_reduction(parameter, graph, prices.mesh, precision):
            issued[part.axis, part.collective].append(part)
    found: defaultdict[str, float] = defaultdict(float)
    for (axis, _), parts in issued.items():
        early = in_buckets(parts)[:-1]
        if early:
            found[prices.mesh.names[axis]] += sum(map(prices.collective, early))
    return dict(found)


def _first_reduction(
    parameter: ParameterPlan, graph: Graph, mesh: Mesh, precision: str
) -> list[Traffic]:
    for conversion in reversed(parameter.steps):
        issued = _issued(conversion, graph, mesh, precision)
        if backward := [part for part in issued if part.direction == "backward"]:
            return backward
    return []


def update_seconds(graph: Graph, parameters: tuple[ParameterPlan, ...], prices: Prices) -> float:
    """Seconds of the optimizer's step on the parameters at rest on one rank."""
    leaf = {node.target: node.outputs[0] for node in graph.leaves("parameter")}
    return sum(
        prices.update(local_nbytes(leaf[p.name], p.stored, prices.mesh))
        for p in parameters
        if leaf[p.name].differentiable
    )


def storage_bytes(
    tensor: Tensor, parameter: ParameterPlan, prices: Prices, graph: Graph
) -> StorageBytes:
    """What a planned parameter occupies."""
    storage = Storage(parameter.stored, parameter.leaf, False)
    return storage_nbytes(tensor, storage, prices, tensor.name in graph.reached)


def flows_of(issued: tuple[Traffic, ...], scope: Scope, prices: Prices) -> Iterator[Flow]:
    """Collectives by axis, kind and direction."""
    groups: defaultdict[tuple[int, str, str], list[Traffic]] = defaultdict(list)
    for part in issued:
        groups[part.axis, part.collective, part.direction].append(part)
    for (axis, _, _), parts in sorted(groups.items()):
        calls = in_buckets(parts) if scope == "step" else parts
        yield Flow(
            axis=prices.mesh.names[axis],
            collective=parts[0].collective,
            direction=parts[0].direction,
            scope=scope,
            calls=len(calls),
            nbytes=sum(part.nbytes for part in parts),
            seconds=sum(map(prices.collective, calls)),
        )


def in_buckets(parts: list[Traffic]) -> list[Traffic]:
    """Collectives of single parameters as they travel: backwards from the last parameter's."""
    in_order = parts if parts[0].direction == "forward" else parts[::-1]
    return [
        replace(parts[0], nbytes=sum(in_order[place].nbytes for place in places))
        for places in buckets(part.nbytes for part in in_order)
    ]


def working(moments: Moments) -> int:
    """What is in use at the highest point of a step beside what the forward has kept at its end."""
    return max(0, moments.most_nbytes - moments.keeps.nbytes())
