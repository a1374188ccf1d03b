"""Proposes sizes to pad, with target sizes: the batch, dims of weights, and parts of dims."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from autopar.errors import PaddingError
from autopar.ir.graph import Graph, short
from autopar.ir.mesh import Mesh
from autopar.ir.pads import Pad
from autopar.plans.record import Padding
from autopar.rules.declare import rule_of
from autopar.sharding.padding.rewrite import padded
from autopar.sharding.padding.spread import Pads, spread

MOST_WASTE = 1.0
"""Padding must add less than the size itself: with twice the work, replicas would do just as well."""
_VIEWS = frozenset(["view", "reshape", "_unsafe_view", "flatten", "unflatten"])


@dataclass(frozen=True)
class Proposal:
    """One size that recurs in a model, such as 25 heads in every layer, and what it may be padded to.

    `choices` are complete sets of parameters and inputs to pad, each to a multiple of another number of
    ranks, the largest number first.
    """

    size: int
    is_batch: bool
    choices: tuple[tuple[Padding, ...], ...]


def proposals(graph: Graph, mesh: Mesh, *, inputs: bool) -> tuple[Proposal, ...]:
    """Return every size that some axes of the mesh do not divide, and that can be padded.

    Without `inputs` the batch is not padded, because each rank passes its own part of it.
    """
    multiples = _multiples(mesh)
    found: dict[tuple[int, bool], list[Pads]] = {}
    known: set[tuple[str, int, int, int]] = set()
    for name, pad in _seeds(graph, multiples, inputs):
        if (name, pad.dim, pad.before, pad.size) in known:
            continue
        try:
            pads = spread(graph, {name: (pad,)})
        except PaddingError:
            continue
        known |= {(n, p.dim, p.before, p.size) for n, dims in pads.items() for p in dims.values()}
        is_batch = any(graph.producer[n].op == "input" for n in pads)
        if inputs or not is_batch:
            found.setdefault((pad.size, is_batch), []).append(pads)
    made = (_proposal(graph, size, batch, pads, multiples) for (size, batch), pads in found.items())
    return tuple(proposal for proposal in made if proposal.choices)


def _multiples(mesh: Mesh) -> tuple[int, ...]:
    """Return the products of the sizes of any axes, the largest first."""
    sets = itertools.chain.from_iterable(
        itertools.combinations(mesh.sizes, count) for count in range(1, len(mesh) + 1)
    )
    return tuple(sorted({math.prod(sizes) for sizes in sets} - {1}, reverse=True))


def _targets(size: int, multiples: tuple[int, ...]) -> tuple[int, ...]:
    """Return what a size may be padded to; nothing if all axes together divide it."""
    grown = (math.ceil(size / m) * m for m in multiples if size % m)
    return tuple(dict.fromkeys(to for to in grown if to < size * (1 + MOST_WASTE)))


def _seeds(graph: Graph, multiples: tuple[int, ...], inputs: bool) -> Iterator[tuple[str, Pad]]:
    """Yield (tensor, pad) for each size that could be padded: batch, dims of weights, parts of dims."""
    batches = [n.outputs[0] for n in graph.leaves("input") if n.outputs[0].shape]
    if batches and inputs:
        yield from _seed(batches[0].name, 0, batches[0].shape[0], multiples)
    for node in graph.leaves("parameter"):
        for dim, size in enumerate(node.outputs[0].shape):
            yield from _seed(node.outputs[0].name, dim, size, multiples)
    for node in graph.nodes:
        if short(node.op) not in _VIEWS:
            continue
        instance = rule_of(node, graph)
        terms = (*instance.rule.inputs, *instance.rule.outputs)
        names = (*node.operands, *(tensor.name for tensor in node.outputs))
        for name, term in zip(names, terms, strict=True):
            for dim, factors in enumerate(term.dims):
                sizes = [instance.sizes[factor] for factor in factors]
                for place, size in enumerate(sizes if len(sizes) > 1 else ()):
                    around = math.prod(sizes[:place]), math.prod(sizes[place + 1 :])
                    yield from _seed(name, dim, size, multiples, *around)


def _seed(
    name: str, dim: int, size: int, multiples: tuple[int, ...], before: int = 1, after: int = 1
) -> Iterator[tuple[str, Pad]]:
    targets = _targets(size, multiples) if size > 1 else ()
    if targets:
        yield name, Pad(dim, size, targets[0], before, after)


def _proposal(
    graph: Graph, size: int, is_batch: bool, classes: list[Pads], multiples: tuple[int, ...]
) -> Proposal:
    targets = _targets(size, multiples)
    able = _able(graph, [tuple(_leaves(graph, pads, targets[0])) for pads in classes])
    choices = (
        tuple(replace(one, pad=replace(one.pad, to=to)) for leaves in able for one in leaves)
        for to in targets
    )
    return Proposal(size, is_batch, tuple(choice for choice in choices if choice))


def _able(graph: Graph, classes: list[tuple[Padding, ...]]) -> list[tuple[Padding, ...]]:
    """Return the classes that can be padded, usually all; the target size makes no difference."""
    try:
        padded(graph, (one for leaves in classes for one in leaves))
    except PaddingError:
        halves = (classes[: len(classes) // 2], classes[len(classes) // 2 :])
        return [] if len(classes) == 1 else [able for half in halves for able in _able(graph, half)]
    return classes


def _leaves(graph: Graph, pads: Pads, to: int) -> Iterator[Padding]:
    for node in graph.nodes:
        if node.op in ("parameter", "input"):
            for pad in pads.get(node.outputs[0].name, {}).values():
                yield Padding(node.target, Pad(pad.dim, pad.size, to, pad.before, pad.after))


__all__ = ["Proposal", "proposals"]
