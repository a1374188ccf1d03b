"""Rules of views, derived from the shapes: the coarsest factors of which both shapes consist."""

from __future__ import annotations

from autopar.rules.declare import Call, Declared, rule
from autopar.rules.families.letters import broadcast, names, term

FIRST = (frozenset({0}),)


@rule("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze",
      "view_as", "reshape_as")  # fmt: skip
def view(call: Call) -> Declared | None:
    """Merged and split dims: ``(b t) h -> b t h``.

    A squeeze would take away a dim of which one entry is left on each rank as well.
    """
    if len(call.shapes) > 1 or call.node.op == "aten.view.dtype":
        return None
    least = 2 if ".squeeze." in call.node.op else 1
    before, after = call.shapes[0], call.made[0]
    cuts = sorted(_cuts(before) | _cuts(after))
    sizes = {f"f{i}": cuts[i + 1] // cuts[i] for i in range(len(cuts) - 1)}
    if any(cuts[i + 1] % cuts[i] for i in range(len(cuts) - 1)):
        return _ragged(before, after)
    return Declared(f"{_side(before, cuts)} -> {_side(after, cuts)}", FIRST, sizes, least=least)


def _cuts(shape: tuple[int, ...]) -> set[int]:
    """Return the cumulative products of sizes, outermost first, which are the borders between dims."""
    position, found = 1, {1}
    for size in shape:
        position *= size
        found.add(position)
    return found


def _side(shape: tuple[int, ...], cuts: list[int]) -> str:
    """Return the term of a shape: each dim as the factors between its two borders."""
    position, dims = 1, []
    for size in shape:
        end = position * size
        inside = [i for i, cut in enumerate(cuts[:-1]) if position <= cut < end]
        factors = [f"f{i}" for i in inside]
        dims.append(factors[0] if len(factors) == 1 else f"({term(factors)})" if factors else "1")
        position = end
    return term(dims)


def _ragged(before: tuple[int, ...], after: tuple[int, ...]) -> Declared:
    """Return the rule for borders that do not nest, such as [2, 3] -> [3, 2].

    Only leading dims that are equal may be split.
    """
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same]:
        same += 1
    shared = names(same)
    left = [f"l{i}!" for i in range(same, len(before))]
    right = [f"r{i}!" for i in range(same, len(after))]
    return Declared(f"{term([*shared, *left])} -> {term([*shared, *right])}", FIRST)


@rule("expand", "broadcast_to", "expand_as")
def expand(call: Call) -> Declared | None:
    """Stretched dims are factors that the operand lacks."""
    if len(call.shapes) > 1:
        return None
    out = call.made[0]
    return Declared(f"{broadcast(call.shapes[0], out)} -> {term(names(len(out)))}", FIRST)
