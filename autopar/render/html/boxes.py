"""Draws a sharded tensor as an SVG box: lines where mesh axes split it, with rank 0's shard filled.

At most two dims are drawn, preferably split ones, the first ones of each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from autopar.ir.mesh import Mesh
from autopar.ir.placement import P, Sharding

WIDE, HIGH, LOW = 96, 40, 16
MOST = 64
"""Maximum number of pieces of a dim; with more, only the first piece of rank 0 is drawn."""
NARROW = 4
"""Minimum number of pixels between lines; closer ones would form a grey area, and are omitted."""
LEAST = 1.5
"""Minimum size in pixels of a filled piece, so that it is visible."""


def box(shape: tuple[int, ...], form: Sharding, mesh: Mesh) -> str:
    """Return the SVG, with a description in words as its title."""
    dims = _dims(shape, form)
    high = HIGH if len(dims) > 1 else LOW
    down, across = (dims[0], dims[1]) if len(dims) > 1 else (None, dims[0] if dims else None)
    said = _words(shape, form, mesh)
    parts = [
        f'<svg class="box" width="{WIDE + 2}" height="{high + 2}" role="img" '
        f'aria-label="{escape(said)}"><title>{escape(said)}</title>',
        f'<rect class="whole" x="1" y="1" width="{WIDE}" height="{high}"/>',
    ]
    for place, depth in _cuts(form, mesh, across, WIDE):
        x = 1 + place * WIDE
        parts.append(f'<line class="cut{depth}" x1="{x:.2f}" x2="{x:.2f}" y1="1" y2="{high + 1}"/>')
    for place, depth in _cuts(form, mesh, down, high):
        y = 1 + place * high
        parts.append(f'<line class="cut{depth}" x1="1" x2="{WIDE + 1}" y1="{y:.2f}" y2="{y:.2f}"/>')
    for top, tall in _owned(form, mesh, down):
        for left, long in _owned(form, mesh, across):
            parts.append(
                f'<rect class="mine" x="{1 + left * WIDE:.2f}" y="{1 + top * high:.2f}" '
                f'width="{max(long * WIDE, LEAST):.2f}" height="{max(tall * high, LEAST):.2f}"/>'
            )
    if P in form.types:
        parts.append(f'<text class="sum" x="{WIDE / 2}" y="{high - 2}">Σ</text>')
    return "".join((*parts, "</svg>"))


def _dims(shape: tuple[int, ...], form: Sharding) -> tuple[int, ...]:
    cut = [dim for dim in range(len(shape)) if form.cuts(dim)]
    rest = [dim for dim in range(len(shape)) if dim not in cut]
    return tuple(sorted((cut + rest)[:2]))


def _parts(form: Sharding, mesh: Mesh, dim: int | None) -> tuple[list[tuple[int, int]], int]:
    """Return (position, axis) of every split of a dim, and the resulting number of pieces."""
    cuts = [] if dim is None else [(of, a) for of, a in form.cuts(dim) if mesh.sizes[a] > 1]
    return cuts, max((of * mesh.sizes[axis] for of, axis in cuts), default=1)


def _owned(form: Sharding, mesh: Mesh, dim: int | None) -> list[tuple[float, float]]:
    """Return (start, length) of rank 0's pieces, as shares of the dim."""
    cuts, pieces = _parts(form, mesh, dim)
    if pieces > MOST:
        return [(0.0, 1 / pieces)]
    mine = [
        piece
        for piece in range(pieces)
        if all(piece * of * mesh.sizes[a] // pieces % mesh.sizes[a] == 0 for of, a in cuts)
    ]
    return [(piece / pieces, 1 / pieces) for piece in mine]


def _cuts(form: Sharding, mesh: Mesh, dim: int | None, pixels: int) -> Iterator[tuple[float, int]]:
    """Yield the lines: position as a share of the dim, and nesting depth, 0 for the outermost axis."""
    cuts, _ = _parts(form, mesh, dim)
    drawn: set[float] = set()
    for depth, (of, axis) in enumerate(cuts):
        pieces = of * mesh.sizes[axis]
        for piece in range(1, pieces) if pieces * NARROW <= pixels else ():
            place = piece / pieces
            if place not in drawn:
                drawn.add(place)
                yield place, min(depth, 2)


def _words(shape: tuple[int, ...], form: Sharding, mesh: Mesh) -> str:
    local = "x".join(map(str, _local(shape, form, mesh))) or "scalar"
    whole = "x".join(map(str, shape)) or "scalar"
    types = ", ".join(f"{kind} on {axis}" for kind, axis in zip(form, mesh.names, strict=True))
    return f"{whole}: {types}; a rank holds {local}"


def _local(shape: tuple[int, ...], form: Sharding, mesh: Mesh) -> tuple[int, ...]:
    """Return a rank's local shape; where a dim does not divide evenly, the largest one."""
    return tuple(
        math.ceil(size / math.prod(mesh.sizes[axis] for _, axis in form.cuts(dim)))
        for dim, size in enumerate(shape)
    )
