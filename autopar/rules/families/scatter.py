"""Rules of writes at indices: the tensor that is written to stays whole along the indexed dims.

Entries that are *added* may be split: each rank adds its own, and the result is a partial sum.
"""

from __future__ import annotations

from autopar.rules.declare import Call, Declared, rule
from autopar.rules.families.indexing import indexed
from autopar.rules.families.letters import broadcast, keep_whole, names, term
from autopar.rules.families.shape import number

FIRST = (frozenset({0}),)


def _dim(call: Call, place: int = 1) -> int:
    return number(call.arg(place, "dim")) % len(call.shapes[0])


@rule("index_add", "index_copy")
def rows(call: Call) -> Declared | None:
    """``x.index_add(dim, i, source)``: rows of the source, added or put in place."""
    if not call.shapes[0] or len(call.shapes[2]) != len(call.shapes[0]):
        return None
    dim, adds = _dim(call), "index_add" in call.node.op
    letters = names(len(call.shapes[0]))
    source = list(letters)
    source[dim] = "i" if adds else "i!"
    whole = term(keep_whole(letters, [dim]))
    text = f"{'+ ' if adds else ''}{whole}, {source[dim]}, {term(source)} -> {whole}"
    return Declared(text, (frozenset({0, 2}),))


@rule("index_fill.int_Scalar")
def index_fill(call: Call) -> Declared:
    """Rows become a number."""
    whole = term(keep_whole(names(len(call.shapes[0])), [_dim(call)]))
    return Declared(f"{whole}, i! -> {whole}", FIRST if call.arg(3, "value") == 0 else ())


@rule("scatter_add", "scatter.src", "scatter_reduce.two")
def entries(call: Call) -> Declared | None:
    """``x.scatter_add(dim, i, source)``: along other dims an index may stop short; whole then."""
    x, indices, source = call.shapes
    if not x or len(indices) != len(x):
        return None
    dim = _dim(call)
    kind = call.node.op.split(".")[1]
    reduces = call.arg(4, "reduce") if kind == "scatter_reduce" else None
    adds = kind == "scatter_add" or (reduces == "sum" and call.arg(5, "include_self", True))
    read, index, given = names(len(x)), names(len(x)), names(len(x))
    for place, sizes in enumerate(zip(x, indices, source, strict=True)):
        if place == dim:
            read[place] = f"x{place}!"
            short = sizes[1] != sizes[2]
            index[place], given[place] = (f"i{place}!", f"s{place}!") if short else ("i", "i")
            if not adds and not short:
                index[place] = given[place] = "i!"
        elif len(set(sizes)) > 1:
            read[place], index[place], given[place] = f"x{place}!", f"i{place}!", f"s{place}!"
    linear = (frozenset({0, 2}),) if reduces in (None, "sum", "mean") else ()
    text = f"{'+ ' if adds else ''}{term(read)}, {term(index)}, {term(given)} -> {term(read)}"
    return Declared(text, linear)


@rule("scatter.value")
def filled(call: Call) -> Declared | None:
    """A number at every place."""
    x, indices = call.shapes
    if not x or len(indices) != len(x):
        return None
    dim = _dim(call)
    read, index = names(len(x)), names(len(x))
    for place, (one, other) in enumerate(zip(x, indices, strict=True)):
        if place == dim or one != other:
            read[place], index[place] = f"x{place}!", f"i{place}!"
    linear = FIRST if call.arg(3, "value") == 0 else ()
    return Declared(f"{term(read)}, {term(index)} -> {term(read)}", linear)


@rule("index_put")
def index_put(call: Call) -> Declared | None:
    """``x[i, :, j] = values``, or ``+=``."""
    terms = indexed(call)
    if terms is None:
        return None
    read, indices, made = terms
    adds = bool(call.arg(3, "accumulate", False))
    letters = [name if adds or not name.startswith("i") else f"{name}!" for name in made]
    places = [_marked(text, adds) for text in indices]
    shape = _shape_of(call, letters, read)
    values = broadcast(call.shapes[-1], shape, letters)
    text = f"{'+ ' if adds else ''}{', '.join([term(read), *places, values])} -> {term(read)}"
    return Declared(text, (frozenset({0, len(call.shapes) - 1}),))


def _marked(text: str, adds: bool) -> str:
    """Return the term of an index, all of it whole if entries are overwritten rather than added."""
    return text if adds else term([w if w in ("1", "()") else f"{w}!" for w in text.split()])


def _shape_of(call: Call, letters: list[str], read: list[str]) -> tuple[int, ...]:
    """Return the shape of ``x[i, :, j]``."""
    sizes = dict(zip(read, call.shapes[0], strict=True))
    indices = call.shapes[1:-1]
    rank = max(map(len, indices))
    for place in range(rank):
        found = [s[place - rank + len(s)] for s in indices if place - rank + len(s) >= 0]
        sizes[f"i{place}"] = max(found)
    return tuple(
        sizes[name] if name in sizes else sizes[name.removesuffix("!")] for name in letters
    )


@rule("slice_scatter")
def slice_scatter(call: Call) -> Declared:
    """A slice becomes another tensor."""
    dim = _dim(call, 2)
    letters = keep_whole(names(len(call.shapes[0])), [dim])
    part = list(letters)
    part[dim] = "part!"
    text = f"{term(letters)}, {term(part)} -> {term(letters)}"
    return Declared(text, (frozenset({0, 1}),))


@rule("select_scatter")
def select_scatter(call: Call) -> Declared:
    """One row becomes another tensor."""
    dim = _dim(call, 2)
    letters = keep_whole(names(len(call.shapes[0])), [dim])
    part = term([name for place, name in enumerate(letters) if place != dim])
    return Declared(f"{term(letters)}, {part} -> {term(letters)}", (frozenset({0, 1}),))
