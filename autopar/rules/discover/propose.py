"""Proposes dims that may be split together: large sizes first, and guesses that split most operands.

Only the places in operands are guessed.  Those in outputs follow from a run on two (or three) shards: a
dim that became half (a third) as long has the factor, and an output of the same shape is a partial sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, combinations, islice, product

import torch

from autopar.ir.mesh import Mesh
from autopar.ir.placement import N, P, R, S, Sharding
from autopar.ops.operators import callable_of
from autopar.rules.discover.laboratory import Bench, accepts
from autopar.rules.discover.places import Factor, Place
from autopar.rules.discover.sizes import numbers
from autopar.rules.prove import TOLERANCE, Reference, WrongError, error, gather, run, scatter

MOST, ALTOGETHER = 400, 1200
"""Maximum number of guesses per size of a factor, and for all sizes."""
MANY, OF_MANY = 5, 64
"""With more than `MANY` operands there are too many guesses, and only `OF_MANY` are tried."""
ADDED = 4
"""Maximum number of operands that are added outside a product; all sets of up to so many are tried."""
PAIR, THREE = Mesh.of(2), Mesh.of(3)


def proposals(
    bench: Bench, merged: bool, known: Callable[[], tuple[Factor, ...]]
) -> Iterator[Factor]:
    """Yield factors that a forward run on shards does not refute: whole dims, or parts if `merged`.

    No proposal overlaps one of the `known` factors.
    """
    sizes = _parts(bench) if merged else {n for shape in bench.shapes for n in shape if n > 1}
    left = ALTOGETHER if len(bench.operands) <= MANY else OF_MANY
    for size in sorted(sizes, reverse=True):
        if size % 2 and size % 3:
            continue
        options = [
            (*(p for p in _places(shape, size, merged) if _free(i, p, size, known())), None)
            for i, shape in enumerate(bench.shapes)
        ]
        guesses = list(islice(product(*options), 8 * MOST))
        guesses.sort(key=lambda guess: guess.count(None))
        for places in guesses[:MOST]:
            held = [(i, place) for i, place in enumerate(places) if place is not None]
            if held and left and all(_free(i, place, size, known()) for i, place in held):
                left -= 1
                yield from _consistent(bench, Factor(size, places, ()))


def _free(operand: int, place: Place, size: int, known: tuple[Factor, ...]) -> bool:
    """Return whether the place in an operand overlaps none of the known factors."""
    for factor in known:
        other = factor.inputs[operand]
        if other is not None and other.dim == place.dim:
            apart = (
                place.before >= other.before * factor.size or other.before >= place.before * size
            )
            if not apart:
                return False
    return True


def _parts(bench: Bench) -> set[int]:
    """Return possible sizes of parts of dims: other dims, integer arguments, and the quotients."""
    dims = {n for shape in bench.shapes for n in shape if n > 1}
    made = {n for tensor in bench.node.outputs for n in tensor.shape if n > 1}
    found = {n for size in dims for n in dims | made if size % n == 0 and n < size}
    counts = {n for n in numbers(bench.node) if any(size % n == 0 and n < size for size in dims)}
    left = {size // n for size in dims for n in found | counts if size % n == 0}
    return {n for n in found | counts | left if n > 1}


def _places(shape: tuple[int, ...], size: int, merged: bool) -> tuple[Place, ...]:
    found = [Place(dim) for dim, length in enumerate(shape) if length == size]
    if merged:
        for dim, length in enumerate(shape):
            if length % size == 0 and length > size:
                found += [Place(dim), Place(dim, length // size)]
    return tuple(found)


def _consistent(bench: Bench, factor: Factor) -> Iterator[Factor]:
    """Yield the factor with its places in the outputs, for each possible set of added operands."""
    whole = bench.wholes[0]
    absent = [
        i
        for i, (place, tensor) in enumerate(zip(factor.inputs, bench.operands, strict=True))
        if place is None and tensor.differentiable
    ]
    groups = chain.from_iterable(
        combinations(absent, n) for n in range(min(len(absent), ADDED) + 1)
    )
    for added in map(frozenset, groups):
        try:
            outputs = _outputs(whole, factor, added)
        except _Unfit:
            return
        if outputs is not None and not (added and any(outputs)):
            yield Factor(factor.size, factor.inputs, outputs, added)


class _Unfit(Exception):
    """The operator does not run on such shards, whatever their values."""


def _outputs(
    whole: Reference, factor: Factor, added: frozenset[int]
) -> tuple[Place | None, ...] | None:
    """Return the factor's place in each output, from a run on shards; None if the results do not fit.

    Raises `_Unfit` if the operator does not run on the shards.
    """
    generator, mesh = torch.Generator().manual_seed(7), THREE if factor.size % 2 else PAIR
    names, tensors = whole.node.operands, whole.graph.tensors
    forms = [
        _form(place, i in added, tensors[name].differentiable)
        for i, (place, name) in enumerate(zip(factor.inputs, names, strict=True))
    ]
    here = tuple(
        form.local_shape(tuple(value.shape), mesh)
        for value, form in zip(whole.operands, forms, strict=True)
    )
    call = (whole.node.args, whole.node.kwargs)
    if not accepts(whole.node, call, tuple(tensors[name] for name in names), here):
        raise _Unfit
    try:
        operands = [
            scatter(value, form, mesh, generator)
            for value, form in zip(whole.operands, forms, strict=True)
        ]
        function = callable_of(whole.node.op)
        with torch.no_grad():
            made = [
                run(
                    whole.graph,
                    whole.node,
                    function,
                    call,
                    [part[rank] for part in operands],
                    whole.fed,
                )[0]
                for rank in range(mesh.world_size)
            ]
    except Exception:
        raise _Unfit from None
    found: list[Place | None] = []
    for want, parts in zip(whole.outputs, zip(*made, strict=True), strict=True):
        place = _place(want, list(parts), factor.size, mesh)
        if isinstance(place, bool):
            return None
        found.append(place)
    return tuple(found)


def _form(place: Place | None, added: bool, differentiable: bool) -> Sharding:
    if place is not None:
        return Sharding((S(place.dim, place.before),))
    return Sharding((P if added else R if differentiable else N,))


def _place(
    want: torch.Tensor, parts: list[torch.Tensor], size: int, mesh: Mesh
) -> Place | bool | None:
    """Return a factor's place in an output; None if it is a partial sum, False if parts do not fit."""
    shape = tuple(want.shape)
    changed = [d for d, (a, b) in enumerate(zip(parts[0].shape, shape, strict=False)) if a != b]
    if parts[0].dim() != want.dim() or len(changed) > 1:
        return False
    if not changed:
        return None if _makes(want, parts, Sharding((P,)), mesh) else False
    dim = changed[0]
    if shape[dim] % size:
        return False
    for before in dict.fromkeys((1, shape[dim] // size)):
        if _makes(want, parts, Sharding((S(dim, before),)), mesh):
            return Place(dim, before)
    return False


def _makes(want: torch.Tensor, parts: list[torch.Tensor], form: Sharding, mesh: Mesh) -> bool:
    try:
        return error(gather(parts, tuple(want.shape), form, mesh), want) <= TOLERANCE
    except (WrongError, RuntimeError):
        return False
