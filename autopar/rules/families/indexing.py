"""Rules of look-ups by index: the indexed dims stay whole, the indices may be split."""

from __future__ import annotations

import math
from itertools import pairwise

from autopar.rules.declare import Call, Declared, rule
from autopar.rules.families.letters import broadcast, keep_whole, names, term
from autopar.rules.families.shape import number

FIRST = (frozenset({0}),)


@rule("embedding")
def embedding(call: Call) -> Declared:
    """Rows of a table; the vocabulary through vocab_parallel_embedding, which leaves zeros to add."""
    scaled = call.arg(3, "scale_grad_by_freq", False) or call.arg(4, "sparse", False)
    if scaled:
        # The number of occurrences of an index is counted over all indices.
        return Declared("v! h, b*! -> b*! h", FIRST)
    if call.operands[0].dtype == "bool":
        # Booleans cannot be summed over ranks.
        return Declared("v! h, b* -> b* h")
    return Declared("v h, b* -> b* h", FIRST, variants={"v": "vocab_parallel_embedding"})


def indexed(call: Call) -> tuple[list[str], list[str], list[str]] | None:
    """Return the terms of ``x[i, :, j]``: of x, of each index, and of the result; None for booleans.

    Indices are broadcast together.  If they are adjacent, the result has their dims in the same place,
    else in front.
    """
    given = call.arg(1, "indices")
    assert isinstance(given, tuple)
    dims = [dim for dim, index in enumerate(given) if index is not None]
    indices = call.operands[1 : 1 + len(dims)]
    if not dims or any("int" not in tensor.dtype for tensor in indices):
        return None
    shapes = [tensor.shape for tensor in indices]
    rank = max(map(len, shapes))
    shape = tuple(
        max(s[i - rank + len(s)] for s in shapes if i - rank + len(s) >= 0) for i in range(rank)
    )
    letters = [f"i{i}" for i in range(rank)]
    read = keep_whole(names(len(call.shapes[0])), dims)
    free = [name for dim, name in enumerate(read) if dim not in dims]
    beside = all(b == a + 1 for a, b in pairwise(dims))
    place = dims[0] if beside else 0
    made = [*free[:place], *letters, *free[place:]]
    return read, [broadcast(s, shape, letters) for s in shapes], made


@rule("index.Tensor")
def index(call: Call) -> Declared | None:
    """``x[i, :, j]``."""
    terms = indexed(call)
    if terms is None or math.prod(call.made[0]) == 0:
        return None
    read, indices, made = terms
    return Declared(f"{', '.join([term(read), *indices])} -> {term(made)}", FIRST)


@rule("index_select")
def index_select(call: Call) -> Declared:
    """Entries of one dim."""
    letters = names(len(call.shapes[0]))
    dim = number(call.arg(1, "dim")) % len(letters)
    made = list(letters)
    made[dim] = "i"
    return Declared(f"{term(keep_whole(letters, [dim]))}, i -> {term(made)}", FIRST)


@rule("gather", "take_along_dim")
def gather(call: Call) -> Declared | None:
    """One entry per index; along other dims an index may stop short, and they stay whole then."""
    source, indices = call.shapes
    dim = call.arg(2 if "along" in call.node.op else 1, "dim")
    if len(source) != len(indices) or not isinstance(dim, int) or not source:
        return None
    dim %= len(source)
    read, made = names(len(source)), names(len(source))
    for place, (one, other) in enumerate(zip(source, indices, strict=True)):
        if place == dim or one != other:
            read[place] = f"v{place}!"
        if place != dim and one != other:
            made[place] += "!"
    if "along" in call.node.op and call.made[0] != indices:
        return None
    return Declared(f"{term(read)}, {term(made)} -> {term(made)}", FIRST)


@rule("one_hot")
def one_hot(call: Call) -> Declared | None:
    """A new last dim."""
    classes = call.arg(1, "num_classes", -1)
    return None if classes == -1 else Declared("b* -> b* c!")


@rule("bucketize.Tensor")
def bucketize(call: Call) -> Declared:
    """How many bounds are below: the counts of parts of the bounds add up."""
    free = term(names(len(call.shapes[0])))
    return Declared(f"{free}, bounds -> {free}")


@rule("isin.Tensor_Tensor")
def isin(call: Call) -> Declared:
    """Every element is compared with the same whole list."""
    rest = keep_whole([f"k{i}" for i in range(len(call.shapes[1]))], range(len(call.shapes[1])))
    free = term(names(len(call.shapes[0])))
    return Declared(f"{free}, {term(rest)} -> {free}")


@rule("autopar_static::nonzero", "autopar_static::repeats")
def places(call: Call) -> Declared:
    """Counted over all entries."""
    read, made = (
        [f"{letter}{i}!" for i in range(len(shape))]
        for letter, shape in (("m", call.shapes[0]), ("p", call.made[0]))
    )
    return Declared(f"{term(read)} -> {term(made)}")
