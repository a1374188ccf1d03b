"""Factors found by experiment, and their composition into a rule.

A place is the position of a factor in one tensor: a dim of ``before * size * after`` entries, of which
the factor is the middle.  Several factors may share a dim if they nest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import count

from autopar.ir.graph import Node
from autopar.rules.text import Dim, Rule, Term

LETTERS = "abcdefghijklmnopqrstuv"


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a factor in one tensor."""

    dim: int
    before: int = 1


@dataclass(frozen=True)
class Factor:
    """Dims that are split together: a place per operand and per output, or None where it is absent.

    `added` are operands without the factor that are summed outside the product.
    """

    size: int
    inputs: tuple[Place | None, ...]
    outputs: tuple[Place | None, ...]
    added: frozenset[int] = frozenset()

    @property
    def is_summed(self) -> bool:
        """Whether every output is partial."""
        return not any(self.outputs)


@dataclass(frozen=True)
class Composed:
    """A rule, the sizes of its factors that stay whole, and the letters of the given factors."""

    rule: Rule
    sizes: dict[str, int] = field(default_factory=dict)
    letters: tuple[str, ...] = ()


def compose(
    factors: tuple[Factor, ...], node: Node, shapes: tuple[tuple[int, ...], ...]
) -> Composed | None:
    """Return the rule in which exactly these factors may be split; None if they do not nest."""
    letters = tuple(LETTERS[i] for i in range(len(factors)))
    sizes: dict[str, int] = {}
    fresh = (f"w{i}" for i in count())
    whole: set[str] = set()
    sides: list[tuple[Term, ...]] = []
    made = tuple(tensor.shape for tensor in node.outputs)
    for side, held in ((shapes, "inputs"), (made, "outputs")):
        terms = []
        for number, shape in enumerate(side):
            dims = []
            for dim, size in enumerate(shape):
                here = [
                    (place.before, factor.size, letter)
                    for factor, letter in zip(factors, letters, strict=True)
                    if (place := getattr(factor, held)[number]) is not None and place.dim == dim
                ]
                names = _dim(sorted(here), size, fresh, sizes)
                if names is None:
                    return None
                whole |= {name for name in names if name[0] == "w"}
                dims.append(names)
            terms.append(Term(tuple(dims)))
        sides.append(tuple(terms))
    added = frozenset().union(*(factor.added for factor in factors))
    inputs = tuple(replace(term, added=i in added) for i, term in enumerate(sides[0]))
    return Composed(Rule(inputs, sides[1], frozenset(whole)), sizes, letters)


def _dim(
    here: list[tuple[int, int, str]], size: int, fresh: object, sizes: dict[str, int]
) -> Dim | None:
    """Return the factors of one dim, outermost first, with whole ones in gaps; None if they overlap."""
    if size == 1:
        return ()
    names: list[str] = []
    position = 1
    for before, length, letter in [*here, (size, 1, "")]:
        if before % position:
            return None
        if before > position:
            name = next(fresh)  # type: ignore[call-overload]
            names.append(name)
            if here:
                sizes[name] = before // position
        if letter:
            names.append(letter)
        position = before * length
    return tuple(names) if math.prod((1, position)) == size else None


def in_order(rule: Rule) -> Rule:
    """Return the rule with its letters in the order of their first occurrence."""
    split = (f for term in (*rule.inputs, *rule.outputs) for dim in term.dims for f in dim)
    found = [f for f in dict.fromkeys(split) if f not in rule.whole]
    names = dict(zip(found, LETTERS, strict=False))

    def renamed(term: Term) -> Term:
        return replace(term, dims=tuple(tuple(names.get(f, f) for f in dim) for dim in term.dims))

    return Rule(tuple(map(renamed, rule.inputs)), tuple(map(renamed, rule.outputs)), rule.whole)
