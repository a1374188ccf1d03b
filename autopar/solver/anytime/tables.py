"""A timed problem as a few flat arrays, which compiled functions walk through."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autopar.solver.anytime.timed_problem import Array, Pair, Span

Index = NDArray[np.int64]


class Tables(NamedTuple):
    """Variables i with states s: place `first[i] + s` in all arrays by state.

    Pair e joins `left[e]` and `right[e]`; its table starts at `table_at[e]`, row by row of the left's
    states.  The messages into its left side start at `message_at[e]`, those into its right follow.
    Variable i has the links `link_at[i]` to `link_at[i + 1]`: a pair each, and who is on the other side.
    It has the spans `span_at[i]` to `span_at[i + 1]`, with bytes by state from `nbytes_at`.
    """

    size: Index
    first: Index
    cost: Array
    left: Index
    right: Index
    table_at: Index
    table: Array
    message_at: Index
    link_at: Index
    link_pair: Index
    link_other: Index
    span_at: Index
    span_start: Index
    span_stop: Index
    nbytes_at: Index
    nbytes: Array
    limit: Array


def tables_of(costs: list[Array], pairs: list[Pair], spans: list[Span], limits: Array) -> Tables:
    """Return the arrays; pairs of the same two variables stay apart."""
    size = np.array([len(c) for c in costs], dtype=np.int64)
    left = np.array([p.first for p in pairs], dtype=np.int64)
    right = np.array([p.second for p in pairs], dtype=np.int64)
    ends = np.concatenate([left, right])
    order = np.argsort(ends, kind="stable")
    spans = sorted(spans, key=lambda span: (span.variable, span.start))
    owners = np.array([span.variable for span in spans], dtype=np.int64)
    return Tables(
        size=size,
        first=_starts(size),
        cost=_flat(costs),
        left=left,
        right=right,
        table_at=_starts(size[left] * size[right]),
        table=_flat([p.costs for p in pairs]),
        message_at=_starts(size[left] + size[right]),
        link_at=_starts(np.bincount(ends, minlength=len(size))),
        link_pair=order % max(1, len(pairs)),
        link_other=np.concatenate([right, left])[order],
        span_at=_starts(np.bincount(owners, minlength=len(size))),
        span_start=np.array([span.start for span in spans], dtype=np.int64),
        span_stop=np.array([span.stop for span in spans], dtype=np.int64),
        nbytes_at=_starts(size[owners]),
        nbytes=_flat([span.nbytes for span in spans]),
        limit=limits.astype(np.float64),
    )


def _starts(lengths: Index) -> Index:
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def _flat(arrays: list[Array]) -> Array:
    if not arrays:
        return np.zeros(0)
    return np.concatenate([array.reshape(-1) for array in arrays]).astype(np.float64)
