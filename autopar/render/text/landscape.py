"""Renders the map of plans over batch and memory: as a table for the console, and as Markdown."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

from rich.table import Table

from autopar.explain.words import words
from autopar.ir.blocks import blocks
from autopar.ir.graph import Graph
from autopar.ir.units import nbytes, seconds
from autopar.plans.plan import Plan
from autopar.render.text.proof import proof
from autopar.render.text.table import row, table
from autopar.sharding.landscape import Point


def landscape_table(points: Sequence[Point]) -> Table:
    """Return a table with one row per point: batch, limit, and the best plan in words."""
    made = table(
        "plans over batch and memory", "batch", "limit", "step", "peak", "solver", "how",
        right=("batch", "limit", "step", "peak"),
    )  # fmt: skip
    made.columns[0].no_wrap, made.columns[-1].no_wrap = True, False
    for point in points:
        row(made, str(point.batch), _limit(point.limit_nbytes), *_cells(point))
    return made


def landscape_grid(points: Sequence[Point]) -> str:
    """Return Markdown with a row per batch and a column per limit; equal neighbours are not repeated."""
    limits = sorted({point.limit_nbytes for point in points})
    lines = [["batch", *map(_limit, limits)], ["---:", *("---" for _ in limits)]]
    for batch in sorted({point.batch for point in points}):
        cells = [_cell(p) for p in sorted(points, key=_limit_nbytes) if p.batch == batch]
        said = [b if a != b else "same" for a, b in itertools.pairwise(("", *cells))]
        lines.append([str(batch), *said])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _limit_nbytes(point: Point) -> float:
    return point.limit_nbytes


def _limit(limit_nbytes: float) -> str:
    return "none" if limit_nbytes == math.inf else nbytes(limit_nbytes)


def _cells(point: Point) -> tuple[str, str, str, str]:
    """Return step, peak, proof and words."""
    if point.made is None:
        return "none", "", "", _too_small(point)
    plan = point.made.plan
    return (
        seconds(plan.estimate.step_s),
        nbytes(plan.estimate.memory_nbytes),
        proof(plan.objective_s, plan.bound_s, plan.proof).split(" (")[0],
        "\n".join(_by_axis(point)),
    )


def _cell(point: Point) -> str:
    """Return the same as one cell of Markdown."""
    step, peak, proved, _ = _cells(point)
    if point.made is None:
        return _too_small(point)
    certain = "" if proved == "optimal" else f", {proved}"
    return "<br>".join((f"**{step}**, {peak}{certain}", *_by_axis(point)))


def _by_axis(point: Point) -> tuple[str, ...]:
    assert point.made is not None
    plan = point.made.plan
    phrases = words(plan, point.made.graph)
    said = (f"{axis}: {text}" for axis, text in zip(plan.mesh.names, phrases, strict=True))
    return (*said, *_recomputed(plan, point.made.graph))


def _recomputed(plan: Plan, graph: Graph) -> tuple[str, ...]:
    """Return the number of recomputed blocks by mode, if there are any."""
    modes = Counter(plan.recompute_of.values())
    counts = [f"{modes[mode]} {mode}" for mode in ("full", "selective") if modes[mode]]
    return (f"recompute: {', '.join(counts)} of {len(blocks(graph))} blocks",) if counts else ()


def _too_small(point: Point) -> str:
    needed = point.smallest_nbytes or 0.0
    said = f"nothing fits: the smallest needs {nbytes(needed)}"
    if nbytes(needed) != _limit(point.limit_nbytes):
        return said
    return f"{said}, {nbytes(needed - point.limit_nbytes)} too many"
