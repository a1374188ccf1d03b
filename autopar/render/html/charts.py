"""Builds the report's charts as plotly JSON; `looks` has their colours and patterns."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from autopar.explain.replay import Played, Span
from autopar.ir.units import nbytes
from autopar.plans.estimate import Flow
from autopar.plans.plan import Plan
from autopar.render.html.looks import (
    BLUE,
    COMPUTE,
    DASHES,
    GREY,
    ORANGE,
    RED,
    ROWS,
    SYMBOLS,
    marker,
)
from autopar.render.html.roofline import Roofline

Figure = dict[str, Any]
AXIS = {"automargin": True, "tickformat": ",~g"}
"""Formats numbers as 12,000 and 0.5, without SI prefixes."""
MOST_SPANS = 20_000
"""Maximum number of bars in a timeline, over all rows: browsers are slow with more."""
BESIDE = ", overlapped"
FOLDED = "not drawn one by one"
FEWEST = 1e-2
"""FLOP per byte, below which an operator counts as mere data movement."""
FAR = 3
"""Limits above this multiple of the peak are not drawn: they would squeeze the curves."""


def timeline(played: Played, axes: Sequence[str] = ()) -> tuple[Figure, int]:
    """Return the timeline, and the number of spans that have no bar of their own.

    There is one bar per span, one trace per kind, and up to two lanes per row of ranks.  The pattern of
    a collective depends on the position of its axis in the mesh's `axes`.

    If a row has more spans than its share of `MOST_SPANS`, its first and last spans are drawn, and one
    bar per lane stands for all between them.  So every row is drawn to its end.
    """
    beside = _beside(played)
    by_kind, left = _bars(played, beside)
    in_order = sorted(by_kind.items(), key=lambda kind: kind[0] not in COMPUTE)
    data = [
        {
            "type": "bar", "orientation": "h", "name": kind,
            "y": [lane for lane, _ in spans],
            "base": [_ms(span.start) for _, span in spans],
            "x": [_ms(span.end - span.start) for _, span in spans],
            "customdata": [span.what for _, span in spans],
            "hovertemplate": "%{customdata}<br>%{base:.4~g} ms, %{x:.4~g} ms long<extra>%{y}</extra>",
            "marker": _marker(kind, axes),
        }
        for kind, spans in in_order
    ]  # fmt: skip
    lanes = [f"{row.name.split(' (')[0]}{more}" for row in played.rows for more in ("", beside)]
    used = {lane for spans in by_kind.values() for lane, _ in spans}
    lanes = [lane for lane in lanes if lane in used]
    order = {"categoryorder": "array", "categoryarray": lanes[::-1], "fixedrange": True}
    high = 120 + 26 * len(lanes)
    look: Figure = {"barmode": "overlay", "bargap": 0.15, "yaxis": order}
    return _figure(data, "milliseconds", "", high, **look), left


def _bars(played: Played, beside: str) -> tuple[dict[str, list[tuple[str, Span]]], int]:
    """Return (lane, span) of the bars by kind, and the number of spans without a bar of their own."""
    by_kind: defaultdict[str, list[tuple[str, Span]]] = defaultdict(list)
    left = 0
    shares = _shares([len(row.spans) for row in played.rows], MOST_SPANS)
    for row, share in zip(played.rows, shares, strict=True):
        name = row.name.split(" (")[0]
        drawn, between = _ends(row.spans, share)
        left += len(between)
        for span in (*drawn, *_folded(between)):
            lane = name if span.lane == "compute" else f"{name}{beside}"
            by_kind[_kind(span)].append((lane, span))
    return by_kind, left


def _shares(counts: Sequence[int], most: int) -> list[int]:
    """Return how many of each row are drawn: all, or an equal part of what shorter rows leave."""
    shares = [0] * len(counts)
    order = sorted(range(len(counts)), key=counts.__getitem__)
    for place, row in enumerate(order):
        shares[row] = min(counts[row], (most - sum(shares)) // (len(order) - place))
    return shares


def _ends(spans: Sequence[Span], share: int) -> tuple[list[Span], list[Span]]:
    """Return the first and last spans in time, `share` in total, and those between them."""
    in_order = sorted(spans, key=lambda span: (span.start, span.end))
    first, last = share - share // 2, len(in_order) - share // 2
    return in_order[:first] + in_order[last:], in_order[first:last]


def _folded(between: Iterable[Span]) -> Iterator[Span]:
    """Yield one span per lane that stands for all of its spans."""
    lanes: defaultdict[str, list[Span]] = defaultdict(list)
    for span in between:
        lanes[span.lane].append(span)
    for lane, spans in lanes.items():
        what = f"{len(spans):,} spans, {FOLDED}"
        yield Span(lane, what, min(s.start for s in spans), max(s.end for s in spans))


def _beside(played: Played) -> str:
    """Return the suffix of communication lanes: ``, sends`` for pipelines, else ``, collectives``."""
    every = (span for row in played.rows for span in row.spans)
    return ", sends" if any(span.what.startswith("send") for span in every) else ", collectives"


def _kind(span: Span) -> str:
    if span.what.endswith(FOLDED):
        return FOLDED
    if span.lane == "compute":
        return next((kind for kind in COMPUTE if span.what.startswith(kind)), span.what)
    what = "sends" if span.what.startswith("send") else span.what.split(" of stage")[0]
    return f"{what}{BESIDE}" if span.hidden else what


def _marker(kind: str, axes: Sequence[str]) -> dict[str, Any]:
    """Return the marker of a kind such as ``all_gather on x``, which is the same if hidden."""
    what, _, axis = kind.removesuffix(BESIDE).partition(" on ")
    return marker(what, [_place(axis, axes)])


def _place(axis: str, axes: Sequence[str]) -> int | None:
    return axes.index(axis) if axis in axes else None


def memory(played: Played, limit: float | None) -> Figure:
    """Return the chart of memory over time, with one line per row, and the limit."""
    most = max(row.peak for row in played.rows)
    unit, factor = _bytes(most)
    data: list[dict[str, Any]] = [
        {
            "type": "scatter", "mode": "lines", "name": row.name.split(" (")[0],
            "x": [_ms(second) for second, _ in row.memory] + [_ms(played.step_s)],
            "y": [held / factor for _, held in row.memory] + [row.memory[-1][1] / factor],
            "line": {"shape": "hv", "width": 2, "dash": DASHES[place % len(DASHES)],
                     "color": ROWS[place % len(ROWS)]},
            "hovertemplate": f"%{{y:.4~g}} {unit} at %{{x:.4~g}} ms",
        }
        for place, row in enumerate(played.rows)
    ]  # fmt: skip
    if limit and limit != math.inf:
        data.append(_limit(limit, most, ([0, _ms(played.step_s)], [limit / factor] * 2)))
    return _figure(data, "milliseconds", f"{unit} on one rank", 320, yaxis={"rangemode": "tozero"})


def communication(groups: Sequence[tuple[str, Sequence[Flow]]], axes: Sequence[str] = ()) -> Figure:
    """Return the chart of communication seconds by axis (per stage), stacked by collective."""
    sums: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    sent: defaultdict[tuple[str, str], int] = defaultdict(int)
    for name, flows in groups:
        for flow in flows:
            where = f"{name}{flow.axis}"
            sums[flow.collective][where] += flow.seconds
            sent[flow.collective, where] += flow.nbytes
    data = [
        {
            "type": "bar", "name": kind, "x": list(of), "y": [_ms(s) for s in of.values()],
            "customdata": [sent[kind, where] / 2**20 for where in of],
            "hovertemplate": "%{y:.4~g} ms, %{customdata:.4~g} MiB<extra>" + kind + " on %{x}</extra>",
            "marker": marker(kind, [_place(where.split(", ")[-1], axes) for where in of]),
        }
        for kind, of in sums.items()
    ]  # fmt: skip
    return _figure(data, "mesh axis", "milliseconds a step", 320, barmode="stack",
                   xaxis={"type": "category", "fixedrange": True})  # fmt: skip


def frontier(plans: Sequence[Plan], here: tuple[float, float], limit: float | None) -> Figure:
    """Return the chart of step time against memory, with this plan marked."""
    most = max(here[1], *(p.estimate.memory_nbytes for p in plans))
    unit, factor = _bytes(most)
    found = sorted(
        (p.estimate.memory_nbytes / factor, _ms(p.estimate.step_s), p.digest) for p in plans
    )
    data: list[dict[str, Any]] = [
        {"type": "scatter", "mode": "lines+markers", "name": "corners of the convex hull",
         "x": [x for x, _, _ in found], "y": [y for _, y, _ in found],
         "customdata": [digest for *_, digest in found], "line": {"color": BLUE},
         "hovertemplate": f"%{{x:.4~g}} {unit}, %{{y:.4~g}} ms<extra>%{{customdata}}</extra>"},
        {"type": "scatter", "mode": "markers", "name": "this plan", "x": [here[1] / factor],
         "y": [_ms(here[0])], "marker": {"symbol": "star", "size": 15, "color": ORANGE},
         "hovertemplate": f"%{{x:.4~g}} {unit}, %{{y:.4~g}} ms<extra>this plan</extra>"},
    ]  # fmt: skip
    if limit and limit != math.inf:
        steps = [_ms(here[0]), *(y for _, y, _ in found)]
        data.append(
            _limit(limit, most, ([limit / factor] * 2, [0.98 * min(steps), 1.02 * max(steps)]))
        )
    return _figure(data, f"{unit} on one rank", "milliseconds a step", 320)


def _limit(limit: float, most: float, ends: tuple[list[float], list[float]]) -> dict[str, Any]:
    """Return the limit's line; if it is far above the peak, it appears only in the legend."""
    is_far = limit > FAR * most
    said = f"limit, {nbytes(limit)}"
    xs, ys = ([None], [None]) if is_far else ends
    return {
        "type": "scatter", "mode": "lines", "x": xs, "y": ys,
        "name": f"{said}: {limit / most:.0f} times the peak, not drawn" if is_far else said,
        "line": {"color": RED, "dash": "dash", "width": 2}, "hovertemplate": f"{said}<extra></extra>",
    }  # fmt: skip


def roofline(found: Roofline) -> Figure:
    """Return the roofline chart, with logarithmic axes."""
    at = [dot.flops / dot.nbytes for dot in found.dots]
    low, high = min(at, default=0.1) / 3, max(at, default=100.0) * 3
    data = [*_roofs(found, low, high), *_operators(found)]
    # Operators with hardly any arithmetic would squeeze the others into a corner: zoom out to see them.
    seen = [(x, dot.flops / dot.seconds / 1e12) for x, dot in zip(at, found.dots, strict=True)
            if x >= FEWEST] or [(FEWEST, 1.0)]  # fmt: skip
    peak = max(found.peaks.values(), default=1e12) / 1e12
    across = _decades(min(x for x, _ in seen), max(x for x, _ in seen))
    up = _decades(min(y for _, y in seen), peak)
    powers = {"type": "log", "tickformat": "", "exponentformat": "power", "dtick": 1}
    axes = {"xaxis": {**powers, "range": across}, "yaxis": {**powers, "range": up}}
    return _figure(data, "FLOP per byte", "TFLOP/s on one rank", 360, **axes)


def _roofs(found: Roofline, low: float, high: float) -> Iterator[dict[str, Any]]:
    """Yield the roofs by dtype: bounds by memory and arithmetic, and by the cache if there is one."""
    speeds = {
        "roof": (found.bytes_per_s, GREY),
        "roof in the cache": (found.cache_bytes_per_s, RED),
    }
    for name, (speed, color) in speeds.items():
        for place, (dtype, peak) in enumerate(found.peaks.items() if speed else ()):
            xs = sorted({low, max(low, min(peak / speed, high)), high})
            yield {
                "type": "scatter", "mode": "lines", "name": f"{name}, {dtype}", "x": xs,
                "y": [min(peak, x * speed) / 1e12 for x in xs], "hoverinfo": "name",
                "line": {"color": color, "dash": DASHES[place % len(DASHES)]},
            }  # fmt: skip


def _operators(found: Roofline) -> Iterator[dict[str, Any]]:
    """Yield the operators' dots, sized by their share of the forward, with one colour per stage."""
    for place, where in enumerate(dict.fromkeys(dot.where for dot in found.dots)):
        dots = [dot for dot in found.dots if dot.where == where]
        total = sum(dot.calls * dot.seconds for dot in dots) or 1.0
        shares = [dot.calls * dot.seconds / total for dot in dots]
        yield {
            "type": "scatter", "mode": "markers", "name": f"{where or 'operators'}, forward",
            "x": [dot.flops / dot.nbytes for dot in dots],
            "y": [dot.flops / dot.seconds / 1e12 for dot in dots],
            "text": [f"{dot.name} x{dot.calls}<br>{share:.1%} of the forward"
                     for dot, share in zip(dots, shares, strict=True)],
            "hovertemplate": "%{text}<br>%{x:.4~g} FLOP per byte, %{y:.4~g} TFLOP/s<extra></extra>",
            "marker": {"color": ROWS[place % len(ROWS)], "symbol": SYMBOLS[place % len(SYMBOLS)],
                       "opacity": 0.75, "line": {"width": 2 if place else 1, "color": "white"},
                       "size": [7 + 26 * share**0.5 for share in shares]},
        }  # fmt: skip


def _decades(low: float, high: float) -> list[float]:
    """Return the range of a logarithmic axis, with a margin at both ends."""
    return [math.log10(low) - 0.5, math.log10(high) + 0.5]


def _bytes(most: float) -> tuple[str, int]:
    """Return the largest unit that does not exceed `most` (at least KiB), and its bytes."""
    found = next(((unit, n) for unit, n in (("GiB", 2**30), ("MiB", 2**20)) if most >= n), None)
    return found or ("KiB", 2**10)


def _ms(seconds: float) -> float:
    """Return milliseconds with six digits: more would add megabytes to a page."""
    return float(f"{seconds * 1e3:.6g}")


def _figure(data: list[dict[str, Any]], x: str, y: str, height: int, **layout: Any) -> Figure:
    axes = {
        "xaxis": {"title": {"text": x}, **AXIS, **layout.pop("xaxis", {})},
        "yaxis": {"title": {"text": y}, **AXIS, **layout.pop("yaxis", {})},
    }
    look = {
        "height": height, "margin": {"l": 8, "r": 8, "t": 8, "b": 8}, "hovermode": "closest",
        "showlegend": True,  # for a single trace, too: it names the bars
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
    }  # fmt: skip
    return {"data": data, "layout": {**look, **axes, **layout}}
