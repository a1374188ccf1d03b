"""Views: the rule is read off the shapes, as the coarsest factors that both sides are made of."""

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
    """Flat row-major positions between dims, from the outermost in."""
    position, found = 1, {1}
    for size in shape:
        position *= size
        found.add(position)
    return found


def _side(shape: tuple[int, ...], cuts: list[int]) -> str:
    """Each dim as the factors between its two cuts."""
    position, dims = 1, []
    for size in shape:
        end = position * size
        inside = [i for i, cut in enumerate(cuts[:-1]) if position <= cut < end]
        factors = [f"f{i}" for i in inside]
        dims.append(factors[0] if len(factors) == 1 else f"({term(factors)})" if factors else "1")
        position = end
    return term(dims)


def _ragged(before: tuple[int, ...], after: tuple[int, ...]) -> Declared:
    """Cuts that do not nest, such as [6] -> [2, 3] of [3, 2]: leading equal dims split, the rest not."""
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
