"""Lists the collectives that a plan issues, once per step and per microbatch, and the local copies.

The runtime counts its collectives, so these lists can be checked against a run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from autopar.cost.compressed_traffic import compressed
from autopar.cost.parameters import exchanges
from autopar.cost.prices import is_sum, regathered, widened
from autopar.ir.conversion import Copy, Traffic
from autopar.ir.graph import ITEMSIZE, Graph, Saved, short
from autopar.ir.mesh import Mesh
from autopar.ir.placement import Sharding
from autopar.memory.recompute_set import RecomputeSet, again
from autopar.plans.decisions import Choice, Conversion, ParameterPlan, reduction_dtype
from autopar.plans.grouping import groups
from autopar.plans.plan import Plan
from autopar.request.compression import Compression
from autopar.rules import variant_traffic

WITHOUT_GRADIENT = {"native_layer_norm_backward": 5}
"""Operators that PyTorch differentiates, but not with respect to this operand: here the bias."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A collective of a microbatch.  `weights` is the number of weights in it, 0 for other tensors."""

    traffic: Traffic
    weights: int = 0

    @property
    def gradients(self) -> int:
        """The number of weights whose gradients it sums."""
        return self.weights if is_sum(self.traffic) else 0

    @property
    def nbytes(self) -> int:
        """Bytes of the message on one rank."""
        return self.traffic.nbytes

    def sized(self, nbytes: int) -> Sent:
        """Return the same collective with another number of bytes."""
        return replace(self, traffic=replace(self.traffic, nbytes=nbytes))


@dataclass(frozen=True, slots=True)
class Copied:
    """A local copy of a conversion in a microbatch, and whether the conversion is a weight's."""

    copy: Copy
    of_weight: bool

    @property
    def nbytes(self) -> int:
        """Bytes of the copy on one rank."""
        return self.copy.nbytes

    def sized(self, nbytes: int) -> Copied:
        """Return the same copy with another number of bytes."""
        return replace(self, copy=replace(self.copy, nbytes=nbytes))


@dataclass(frozen=True)
class TrafficOf:
    """All collectives of a training step: those issued once, and those of each microbatch."""

    step: tuple[Traffic, ...]
    microbatch: tuple[Traffic, ...]


@dataclass(frozen=True, eq=False)
class Running:
    """A graph under a plan: shardings of operators, conversions, and what is recomputed."""

    graph: Graph
    choices: tuple[Choice, ...]
    conversions: tuple[Conversion, ...]
    mesh: Mesh
    precision: str
    again: RecomputeSet

    def per_microbatch(self) -> list[Sent]:
        """Return every collective of one microbatch, forward and backward."""
        graph, sent = self.graph, self._of_conversions()
        reached = graph.reached
        for choice in self.choices:
            node = graph.node[choice.node]
            issued = variant_traffic(
                choice.sharding.variant, node, choice.sharding, graph, self.mesh
            )
            goes_back = any(tensor.name in reached for tensor in node.outputs)
            needed = [part for part in issued if goes_back or part.direction == "forward"]
            if choice.node in self.again.computed:
                needed += _once_more(issued)
            sent += map(Sent, needed)
        return sent

    def copies(self) -> list[Copied]:
        """Return the local copies of the conversions."""
        return [
            Copied(copy, self._is_weight(conversion.tensor))
            for place, conversion in enumerate(self.conversions)
            for copy in self._copies_of(place, conversion)
        ]

    def _copies_of(self, place: int, conversion: Conversion) -> Iterator[Copy]:
        tensor = self.graph.tensors[conversion.tensor]
        made = conversion.step.copies(
            tensor.shape, tensor.itemsize, self.mesh, tensor.differentiable
        )
        for copy in made:
            if copy.direction == "forward" or self._goes_back(conversion):
                yield copy
            if copy.direction == "forward" and place in self.again.conversions:
                yield replace(copy, direction="backward")

    def _of_conversions(self) -> list[Sent]:
        """Return the collectives of the conversions; weights of one block share a collective."""
        found = groups(self.graph, self.conversions, self.mesh, self.precision)
        group_of = {(m.tensor, g.hop): i for i, g in enumerate(found) for m in g.members}
        hops: Counter[str] = Counter()
        calls: defaultdict[object, list[tuple[str, Traffic]]] = defaultdict(list)
        for place, conversion in enumerate(self.conversions):
            name = conversion.tensor
            alone = ("alone", place)
            traveller = group_of.get((name, hops[name]), alone)
            hops[name] += 1
            issued = collectives(conversion, self.graph, self.mesh, self.precision)
            for number, part in enumerate(issued):
                if part.direction == "forward" or self._goes_back(conversion):
                    calls[traveller, part.direction, number].append((name, part))
                if place in self.again.conversions:
                    for more in _once_more([part]):
                        calls[traveller, "again", number].append((name, more))
        return [self._together(*zip(*parts, strict=True)) for parts in calls.values()]

    def _together(self, names: Sequence[str], parts: Sequence[Traffic]) -> Sent:
        """Merge the parts of several weights, or of one tensor, into one collective."""
        together = replace(parts[0], nbytes=sum(part.nbytes for part in parts))
        return Sent(together, len(parts) if self._is_weight(names[0]) else 0)

    def _is_weight(self, name: str) -> bool:
        return self.graph.producer[name].op == "parameter"

    def _goes_back(self, conversion: Conversion) -> bool:
        return (conversion.tensor, conversion.target) in self._in_backward

    @cached_property
    def _in_backward(self) -> set[tuple[str, Sharding]]:
        """The forms that receive a gradient: results, and operands of operators with a backward."""
        graph = self.graph
        reached = graph.reached
        forms = {
            (name, form)
            for choice in self.choices
            for node in [graph.node[choice.node]]
            if any(tensor.name in reached for tensor in node.outputs)
            for place, (name, form) in enumerate(
                zip(node.operands, choice.sharding.inputs, strict=True)
            )
            if place != WITHOUT_GRADIENT.get(short(node.op))
        }
        results = {name for name in graph.results if graph.tensors[name].differentiable}
        for conversion in reversed(self.conversions):
            is_read = (conversion.tensor, conversion.target) in forms
            if is_read or conversion.tensor in results:
                forms |= {
                    (conversion.tensor, conversion.target),
                    (conversion.tensor, conversion.source),
                }
        return forms


def traffic(plan: Plan, graph: Graph, saved: Mapping[str, Saved]) -> TrafficOf:
    """Return every collective that the plan issues."""
    shardings = {choice.node: choice.sharding for choice in plan.choices}
    run_again = again(
        graph, shardings, plan.conversions, plan.recompute_of, saved, plan.mesh, plan.precision
    )
    running = Running(graph, plan.choices, plan.conversions, plan.mesh, plan.precision, run_again)
    return traffic_of(running, plan.parameters, plan.compression)


def traffic_of(
    running: Running,
    parameters: tuple[ParameterPlan, ...],
    compression: Compression | None = None,
) -> TrafficOf:
    """Return the collectives of a microbatch and, once per step, of its parameters."""
    step = per_step(running.graph, parameters, running.mesh, running.precision, compression)
    return TrafficOf(step, tuple(sent.traffic for sent in running.per_microbatch()))


def per_step(
    graph: Graph,
    parameters: tuple[ParameterPlan, ...],
    mesh: Mesh,
    precision: str,
    compression: Compression | None = None,
) -> tuple[Traffic, ...]:
    """Return the once-per-step collectives: parameter gathers and gradient reductions."""
    each = by_parameter(graph, parameters, mesh, precision, compression)
    return tuple(part for of in each for part in of)


def by_parameter(
    graph: Graph,
    parameters: tuple[ParameterPlan, ...],
    mesh: Mesh,
    precision: str,
    compression: Compression | None = None,
) -> Iterator[tuple[Traffic, ...]]:
    """Yield the once-per-step collectives of each parameter."""
    leaf = {node.target: node.outputs[0] for node in graph.leaves("parameter")}
    for parameter in parameters:
        tensor = leaf[parameter.name]
        wide = reduction_dtype(tensor.name, graph, precision)
        itemsize = 0 if wide is None else ITEMSIZE[wide]
        yield (
            *(
                part
                for parts in by_step(parameter, graph, mesh, precision, compression)
                for part in parts
            ),
            *exchanges(tensor, parameter.stored, mesh, itemsize),
        )


def by_step(
    parameter: ParameterPlan,
    graph: Graph,
    mesh: Mesh,
    precision: str,
    compression: Compression | None,
) -> list[list[Traffic]]:
    """Return the once-per-step collectives of each step of a parameter from rest to leaf."""
    issued = [tuple(collectives(c, graph, mesh, precision)) for c in parameter.steps]
    if compression is None or not parameter.steps:
        return [list(parts) for parts in issued]
    shape = graph.tensors[parameter.steps[0].tensor].shape
    part = parameter.stored.local_shape(shape, mesh)
    return compressed(issued, parameter.steps, part, mesh, compression)


def collectives(
    conversion: Conversion, graph: Graph, mesh: Mesh, precision: str
) -> Iterator[Traffic]:
    """Yield the collectives of one conversion, forward and backward."""
    tensor = graph.tensors[conversion.tensor]
    step = conversion.step
    wide = reduction_dtype(conversion.tensor, graph, precision)
    factor = 1 if wide is None else ITEMSIZE[wide] // tensor.itemsize
    traffic = step.traffic(tensor.shape, tensor.itemsize, mesh, tensor.differentiable)
    yield from widened(traffic, factor)
    if conversion.regather:
        yield from regathered(step, tensor, mesh)


def _once_more(issued: Iterable[Traffic]) -> list[Traffic]:
    """Return the collectives of a recomputation: those of the forward, issued in the backward."""
    return [replace(p, direction="backward") for p in issued if p.direction == "forward"]
