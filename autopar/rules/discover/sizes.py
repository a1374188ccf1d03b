"""Chooses small shapes for a call: equal sizes stay equal, and divisors stay divisors.

An integer argument may be a size, a number of heads or a window.  A size that equals it is kept.  A size
that is larger than it, or divisible by it, stays so, since the operator may treat a dim that is as long
as its window differently from longer ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from autopar.ir.graph import Arg, Node

Shapes = tuple[tuple[int, ...], ...]
UNIT = 6
"""Factor of the small sizes: it can be split over two and over three ranks, in one block or several."""
NEAR = 4
"""Quotients of two sizes up to this one are kept."""
A_DIM = 4
"""An integer up to this one is taken as a dim rather than a size, if the operator runs that way."""
MOST = 1 << 17
"""Maximum number of elements of all operands together."""


def families(shapes: Shapes, node: Node) -> Iterator[tuple[Shapes, ...]]:
    """Yield sets of small shapes, to be tried in turn until the operator accepts one."""
    every = numbers(node)
    small = {size for shape in shapes for size in shape if size <= A_DIM}
    seen: set[tuple[Shapes, ...]] = set()
    for pinned in ({n for n in every if n > A_DIM}, {*every, *small}):
        made = _two(shapes, every, pinned)
        if made and made not in seen:
            seen.add(made)
            yield made


def _two(shapes: Shapes, every: frozenset[int], pinned: set[int]) -> tuple[Shapes, ...]:
    """Return two sets of shapes; dims divisible by two or three get more such factors if affordable."""
    sizes = {size for shape in shapes for size in shape}
    last = {shape[-1] for shape in shapes if len(shape) > 1} | {max(sizes, default=1)}
    for roomy, most in ((sizes, MOST >> 3), (last, MOST >> 1), (set[int](), MOST)):
        both = (small_shapes(shapes, every, pinned, turn, roomy) for turn in (False, True))
        made = tuple(dict.fromkeys(both))
        if all(affordable(each, most) for each in made):
            return made
    return ()


def affordable(shapes: Shapes, most: int = MOST) -> bool:
    """Return whether the operands have few enough elements for a short experiment."""
    return sum(map(math.prod, shapes)) <= most


def numbers(node: Node) -> frozenset[int]:
    """Return the absolute values above one of the integer arguments."""
    return frozenset(_integers((node.args, tuple(value for _, value in node.kwargs))))


def _integers(arg: Arg) -> Iterator[int]:
    if isinstance(arg, tuple):
        for item in arg:
            yield from _integers(item)
    elif isinstance(arg, int) and not isinstance(arg, bool) and 1 < abs(arg) < 1 << 40:
        yield abs(arg)


def small_shapes(
    shapes: Shapes,
    every: Iterable[int],
    pinned: set[int],
    turn: bool = False,
    roomy: Iterable[int] = (),
) -> Shapes:
    """Return the shapes with each distinct size replaced, unless it is in `pinned`.

    `every` are the integer arguments.  `turn` gives the sizes another order; sizes in `roomy` keep their
    factors two and three.
    """
    table = {0: 0, 1: 1}
    sizes = sorted({size for shape in shapes for size in shape} - {0, 1})
    for place, size in enumerate(sizes):
        if size in pinned:
            table[size] = size
            continue
        below = [n for n in every if n < size]
        divisors = [d for d in sizes[:place] if size % d == 0]
        near = [d for d in divisors if size // d <= NEAR]
        kept = table[near[-1]] * (size // near[-1]) if near else 0
        if kept and kept % UNIT == 0 and all(kept > n for n in below):
            table[size] = kept
            continue
        parts = [n for n in below if size % n == 0]
        several = [UNIT * n for n in parts if n <= UNIT]
        unit = math.lcm(UNIT, *(table[d] for d in divisors[-1:]), *parts, *several)
        unit *= math.gcd(size, UNIT) if size in roomy and not parts else 1
        count = 2 if turn and place % 2 == 0 else 1
        taken = set(table.values())
        while unit * count in taken or any(unit * count <= n for n in below):
            count += 1
        table[size] = unit * count
    return tuple(tuple(table[size] for size in shape) for shape in shapes)
