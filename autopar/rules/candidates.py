"""Enumerates the candidate shardings of each operator: one option per mesh axis, all valid combinations.

On each axis an operator splits one factor, or two factors that its rule declares as a pair, or computes
the same on all ranks (all I, or all R), or passes partial sums through if it is linear.  Two axes that
split the same factor nest in mesh order.
The solver chooses one candidate per node.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from autopar.ir.graph import Graph, Node, Tensor
from autopar.ir.mesh import Mesh
from autopar.ir.placement import I, N, P, R, S, Sharding, Type
from autopar.plans.decisions import OpSharding
from autopar.rules.declare import rule_of
from autopar.rules.instance import Instance
from autopar.rules.positions import Positions, positions, splits_of
from autopar.rules.text import Term
from autopar.rules.variants import CONTIGUOUS, output_letter
from autopar.rules.worth import worth_splitting

Candidates = Mapping[str, tuple[OpSharding, ...]]


@dataclass(frozen=True, slots=True)
class Option:
    """The option of one mesh axis: one letter for all tensors, partial linear operands, or a split.

    A split may be of a pair of factors, `factor` and `beside`, by the variant `by`.
    """

    letter: Type | None = None
    partial: frozenset[int] = frozenset()
    factor: str = ""
    position: int = 1
    beside: str = ""
    by: str = ""

    def variant(self, instance: Instance) -> str:
        """Return the local implementation that the option needs, or ``""``."""
        return self.by or instance.variants.get(self.factor, "")


def candidates(graph: Graph, mesh: Mesh, *, local_inputs: bool = False) -> Candidates:
    """Return the candidates of every node, by node name.

    Cheap operators without gradient are not split, unless the inputs arrive sharded (`local_inputs`).
    """
    known: dict[object, tuple[OpSharding, ...]] = {}
    found: dict[str, tuple[OpSharding, ...]] = {}
    where = positions(graph, min((s for s in mesh.sizes if s > 1), default=1))
    busy = worth_splitting(graph)
    for node in graph.nodes:
        if node.is_leaf:
            found[node.name] = tuple(_leaf(node, where, mesh, local_inputs))
            continue
        instance = rule_of(node, graph)
        operands = tuple(graph.tensors[name] for name in node.operands)
        divides = local_inputs or node.name in busy
        options = tuple(_options(node, instance, operands, graph, where, divides))
        shapes = tuple((t.shape, t.differentiable) for t in (*operands, *node.outputs))
        key = (id(instance), options, shapes)
        if key not in known:
            known[key] = tuple(dict.fromkeys(combine(instance, options, operands, node, mesh)))
        found[node.name] = known[key]
    return found


def _options(
    node: Node,
    instance: Instance,
    operands: tuple[Tensor, ...],
    graph: Graph,
    where: Positions,
    divides: bool,
) -> Iterator[Option]:
    """Yield the options on one axis; `divides`: whether an operator without gradient may be split."""
    differentiable = any(tensor.differentiable for tensor in node.outputs)
    reads = any(tensor.differentiable for tensor in operands)
    yield from (Option(letter=kind) for kind in ((I, R) if differentiable or reads else (N,)))
    if not (differentiable or reads or divides):
        return
    for partial in instance.linear:
        # Boolean tensors cannot be partial sums.
        adds_up = not any(
            t.dtype == "bool" for t in (*(operands[i] for i in partial), *node.outputs)
        )
        flows = not differentiable or any(operands[i].differentiable for i in partial)
        if adds_up and flows:
            yield Option(partial=partial)
    splits = splits_of(node, instance, graph, where)
    for factor, position in splits:
        yield Option(factor=factor, position=position)
        for name, factors in instance.joined.items():
            if factors[0] == factor:
                yield Option(factor=name, position=position)
    for variant, (factor, beside) in instance.pairs.items():
        if (beside, 1) in splits:
            places = (position for found, position in splits if found == factor)
            yield from (
                Option(factor=factor, position=p, beside=beside, by=variant) for p in places
            )


def combine(
    instance: Instance,
    options: tuple[Option, ...],
    operands: tuple[Tensor, ...],
    node: Node,
    mesh: Mesh,
) -> Iterator[OpSharding]:
    """Yield every combination of one option per axis that the shapes allow."""
    # An axis of one device splits nothing: one option is enough.
    per_axis = [options if size > 1 else options[:1] for size in mesh.sizes]
    tensors = (*operands, *node.outputs)
    terms = (*instance.rule.inputs, *instance.rule.outputs)
    for picks in itertools.product(*per_axis):
        nested = _nest(picks, mesh)
        if not _divides(instance, nested, mesh):
            continue
        variants = tuple(pick.variant(instance) for pick in nested)
        if not _one_variant(nested, variants):
            continue
        forms = tuple(
            Sharding(
                tuple(
                    _type(instance, terms[i], i, tensors[i], pick, i >= len(operands))
                    for pick in nested
                )
            )
            for i in range(len(tensors))
        )
        if _possible(instance.least, tensors, forms, mesh):
            yield OpSharding(forms[: len(operands)], forms[len(operands) :], variants)


def _divides(instance: Instance, picks: tuple[Option, ...], mesh: Mesh) -> bool:
    """Whether the splits divide their factors; also those that are no dim of any tensor (groups)."""
    return all(
        instance.divides(pick.factor, pick.position * size)
        and (not pick.beside or instance.sizes[pick.beside] % size == 0)
        for pick, size in zip(picks, mesh.sizes, strict=True)
        if pick.factor
    )


def _one_variant(picks: tuple[Option, ...], variants: tuple[str, ...]) -> bool:
    """Whether at most one axis needs a local implementation, and its blocks are ones it supports."""
    strided = any(
        name in CONTIGUOUS and pick.position > 1 for name, pick in zip(variants, picks, strict=True)
    )
    return sum(map(bool, variants)) <= 1 and not strided


def _possible(
    least: int, tensors: tuple[Tensor, ...], forms: tuple[Sharding, ...], mesh: Mesh
) -> bool:
    """Whether splits divide and leave `least` entries, and a tensor read twice has one sharding."""
    form_of = {tensor.name: form for tensor, form in zip(tensors, forms, strict=True)}
    for tensor, form in zip(tensors, forms, strict=True):
        if form_of[tensor.name] != form or not form.fits(tensor.shape, mesh):
            return False
        local = form.local_shape(tensor.shape, mesh)
        if any(a < least and a != b for a, b in zip(local, tensor.shape, strict=True)):
            return False
    return True


def _nest(picks: tuple[Option, ...], mesh: Mesh) -> tuple[Option, ...]:
    """Nest axes that split the same factor at the same position: each inside the preceding axes."""
    taken: dict[tuple[str, int], int] = {}
    nested = []
    for axis, pick in enumerate(picks):
        if not pick.factor:
            nested.append(pick)
            continue
        place = (pick.factor, pick.position)
        outer = taken.get(place, 1)
        nested.append(replace(pick, position=pick.position * outer))
        taken[place] = outer * mesh.sizes[axis]
    return tuple(nested)


def _type(
    instance: Instance, term: Term, place: int, tensor: Tensor, pick: Option, is_output: bool
) -> Type:
    """Return the type of one operand or output on an axis with option `pick`."""
    rest: Type = R if tensor.differentiable else N
    if pick.letter is not None:
        return pick.letter if tensor.differentiable else N
    if not pick.factor:
        return P if is_output or place in pick.partial else rest
    shard = instance.shard(term, pick.factor, pick.position)
    if shard is None and pick.beside:
        shard = instance.shard(term, pick.beside, 1)
    if shard is not None:
        return shard
    if is_output:
        return output_letter(pick.variant(instance), tensor)
    summed = pick.factor in instance.rule.summed
    return P if term.added and summed else rest


def _leaf(node: Node, where: Positions, mesh: Mesh, local_inputs: bool) -> Iterator[OpSharding]:
    tensor = node.outputs[0]
    nothing = ("",) * len(mesh)
    if node.op == "parameter":
        for form in _parameter_forms(tensor, where[tensor.name], mesh):
            yield OpSharding((), (form,), nothing)
        return
    if node.op == "received":
        for form in _parameter_forms(tensor, where[tensor.name], mesh):
            if R not in form.types:
                yield OpSharding((), (form,), nothing)
        return
    yield OpSharding((), (Sharding.all(N, mesh),), nothing)
    if node.op == "input" and local_inputs and tensor.shape:
        for form in batch_forms(mesh):
            if form.is_split and form.fits(tensor.shape, mesh):
                yield OpSharding((), (form,), nothing)


def _parameter_forms(tensor: Tensor, shards: Iterable[S], mesh: Mesh) -> Iterator[Sharding]:
    """Yield all combinations of letters and splits; two axes on one dim in both orders of nesting."""
    letters: tuple[Type, ...] = (I, R) if tensor.differentiable else (N,)
    ordered = sorted(shards, key=lambda shard: (shard.dim, shard.of))
    per_axis = [(*letters, *ordered) if size > 1 else letters[:1] for size in mesh.sizes]
    seen: set[Sharding] = set()
    for picks in itertools.product(*per_axis):
        for order in _orders(picks):
            form = _nested_in(picks, order, mesh)
            if form not in seen and form.fits(tensor.shape, mesh):
                seen.add(form)
                yield form


def _orders(picks: tuple[Type, ...]) -> Iterator[tuple[int, ...]]:
    axes = range(len(picks))
    yield tuple(axes)
    shared = [kind for kind in picks if isinstance(kind, S) and picks.count(kind) > 1]
    if shared:
        yield tuple(reversed(axes))


def _nested_in(picks: tuple[Type, ...], order: tuple[int, ...], mesh: Mesh) -> Sharding:
    types = list(picks)
    for place, axis in enumerate(order):
        kind = picks[axis]
        if isinstance(kind, S):
            outer = math.prod(mesh.sizes[a] for a in order[:place] if picks[a] == kind)
            types[axis] = S(kind.dim, kind.of * outer)
    return Sharding(tuple(types))


def batch_forms(mesh: Mesh) -> Iterator[Sharding]:
    """Yield shardings of dim 0 over each subset of axes, nested in mesh order; the empty one first."""
    for flags in itertools.product((False, True), repeat=len(mesh)):
        types: list[Type] = []
        outer = 1
        for split, size in zip(flags, mesh.sizes, strict=True):
            types.append(S(0, outer) if split else N)
            outer *= size if split else 1
        yield Sharding(tuple(types))
