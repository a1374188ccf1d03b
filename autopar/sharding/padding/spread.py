"""Propagates padding from leaves to all dims that share a factor with theirs in some operator."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autopar.errors import PaddingError
from autopar.ir.graph import Graph, Node
from autopar.ir.pads import Pad
from autopar.rules.declare import rule_of
from autopar.rules.instance import Instance
from autopar.rules.padding import Way, padding_way
from autopar.rules.text import Term

Pads = dict[str, dict[int, Pad]]
"""Pads by tensor name and dim."""


@dataclass(frozen=True)
class Touch:
    """A padded factor of an operator: its pads in operands and in outputs, by position."""

    factor: str
    way: Way
    read: Mapping[int, Pad]
    made: Mapping[int, Pad]


def spread(graph: Graph, seeds: Mapping[str, tuple[Pad, ...]]) -> Pads:
    """Return all pads that follow from those of some leaves.

    Raises `PaddingError` if a factor or a leaf among them may not be padded, or a dim in two ways.
    """
    found: Pads = {}
    waiting: deque[Node] = deque()

    def put(name: str, pad: Pad) -> None:
        known = found.setdefault(name, {})
        if known.get(pad.dim) == pad:
            return
        if pad.dim in known:
            raise PaddingError(f"{name} would be padded twice: {known[pad.dim]} and {pad}.")
        known[pad.dim] = pad
        _check_leaf(graph, name, pad)
        waiting.extend(
            node for node in (graph.producer[name], *graph.consumers[name]) if not node.is_leaf
        )

    for name, pads in seeds.items():
        for pad in pads:
            put(name, pad)
    while waiting:
        node = waiting.popleft()
        names = (*node.operands, *(tensor.name for tensor in node.outputs))
        for touch in touches(node, graph, found):
            places = {**touch.read, **{len(node.operands) + i: p for i, p in touch.made.items()}}
            for place, pad in places.items():
                put(names[place], pad)
    return found


def touches(node: Node, graph: Graph, pads: Mapping[str, Mapping[int, Pad]]) -> Iterator[Touch]:
    """Yield the operator's padded factors; raise `PaddingError` if one may not be padded."""
    names = (*node.operands, *(tensor.name for tensor in node.outputs))
    if not any(pads.get(name) for name in names):
        return
    instance = rule_of(node, graph)
    terms = (*instance.rule.inputs, *instance.rule.outputs)
    count = len(node.operands)
    parts = dict.fromkeys(
        _part(instance, term, pad, node)
        for name, term in zip(names, terms, strict=True)
        for pad in pads.get(name, {}).values()
    )
    for factor, pad in parts:
        way = padding_way(node, instance, factor)
        if way is None:
            raise PaddingError(
                f"{node.path} ({node.op}) may not be padded along {factor} of its rule "
                f"{instance.rule}: entries in the padding would change its result."
            )
        at = {place: _lies(instance, term, factor, pad) for place, term in enumerate(terms)}
        lies = {place: pad for place, pad in at.items() if pad is not None}
        yield Touch(
            factor,
            way,
            {place: pad for place, pad in lies.items() if place < count},
            {place - count: pad for place, pad in lies.items() if place >= count},
        )


def _part(instance: Instance, term: Term, pad: Pad, node: Node) -> tuple[str, Pad]:
    """Return the factor that is padded in a dim, and the pad within it, whose `dim` has no meaning."""
    outside = 1
    for factor in term.dims[pad.dim]:
        size = instance.sizes[factor]
        if pad.before % outside == 0 and size % ((pad.before // outside) * pad.size) == 0:
            before = pad.before // outside
            inside = Pad(0, pad.size, pad.to, before, size // (before * pad.size))
            return factor, inside
        outside *= size
    raise PaddingError(f"{node.path} ({node.op}) sees {pad} as parts of several dims.")


def _lies(instance: Instance, term: Term, factor: str, inside: Pad) -> Pad | None:
    """Return a factor's padding as a pad of a tensor; None if the tensor does not have the factor."""
    for dim, factors in enumerate(term.dims):
        if factor in factors:
            place = factors.index(factor)
            outer, inner = (
                math.prod(instance.sizes[f] for f in part)
                for part in (factors[:place], factors[place + 1 :])
            )
            before, after = outer * inside.before, inside.after * inner
            return Pad(dim, inside.size, inside.to, before, after)
    return None


def _check_leaf(graph: Graph, name: str, pad: Pad) -> None:
    """Raise `PaddingError` for a leaf that cannot be padded; parameters and inputs can."""
    kind = graph.producer[name].op
    if kind in ("buffer", "constant"):
        raise PaddingError(f"The {kind} {graph.producer[name].target} would be padded: {pad}.")
    if kind == "input" and not pad.is_plain:
        raise PaddingError(f"The input {graph.producer[name].target} would be padded: {pad}.")
    if name in (value for _, value in graph.mutations):
        raise PaddingError(f"A buffer's new value, {name}, would be padded: {pad}.")
