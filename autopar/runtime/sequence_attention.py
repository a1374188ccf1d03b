"""Causal attention of a sequence that is split over a mesh axis, with equal work on every rank.

Rank r of n has rows [r * m, (r + 1) * m) and all keys and values.  Later rows see more keys.  Therefore
each rank exchanges the second half of its rows with its mirror, rank n - 1 - r, and computes a half of
its own and one of its mirror's: together they see as many keys as those of any other rank.  Results
return in the same way.  So the rows of all tensors around stay in order, one block per rank, and no
mask is made: a row sees the keys before its block in full, and its own block causally.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch

from autopar.runtime import _torch
from autopar.runtime.attention_parts import Part, Scores, attend, attend_backward, merge
from autopar.runtime.axes import Axis
from autopar.runtime.kernels import define, start_permute


def sequence_parallel_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: None = None,
    dropout_p: float = 0.0,
    is_causal: bool = True,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    axis: Axis,
) -> torch.Tensor:
    """`F.scaled_dot_product_attention` with ``is_causal=True`` of this rank's rows of the sequence.

    query [b, h, s / ranks, d]; key [b or 1, a, s, d] and value [b or 1, a, s, e] are whole.  Returns
    [b, h, s / ranks, e].  Raises `TypeError` for numbers that are not floating-point.
    """
    scale = checked_scale(query, key, value, scale, axis.size)
    key, value = (x.expand(query.shape[0], *x.shape[1:]) for x in (key, value))
    return attended("attend_rows", query, key, value, scale, axis)


def checked_scale(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None, blocks: int
) -> float:
    """Return the factor of the scores.

    Raise `TypeError` for dtypes that attention does not take, and `ValueError` unless keys and values
    have `blocks` times the rows of the queries: kernels on CPUs crash on some wrong shapes.
    """
    if not query.dtype == key.dtype == value.dtype or not query.is_floating_point():
        raise TypeError(
            f"Attention has queries of {query.dtype}, keys of {key.dtype} and values of {value.dtype}; "
            "F.scaled_dot_product_attention takes floating-point numbers of one dtype. Cast them before."
        )
    samples, heads, rows, width = query.shape
    shapes = [[*x.shape] for x in (query, key, value)]
    fits = key.shape[:3] == value.shape[:3] and key.shape[2:] == (rows * blocks, width)
    if not fits or key.shape[0] not in (1, samples) or not rows or heads % key.shape[1]:
        raise ValueError(
            f"Attention of a split sequence has queries, keys and values of shapes {shapes}; it takes "
            f"[{samples}, heads, {rows}, {width}] with {rows * blocks} keys and values of as many "
            "heads, or of a divisor."
        )
    return 1 / math.sqrt(width) if scale is None else scale


def attended(
    operator: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, axis: Axis
) -> torch.Tensor:
    """Return the result of an operator of this package on this rank's rows, differentiable.

    `operator` is one of the signature of ``attend_rows``, beside which there is its ``_backward``.
    """
    made: torch.Tensor = _Attention.apply(operator, q, k, v, scale, axis)
    return made


class _Attention(torch.autograd.Function):
    """Saves what came from other ranks and is not to be sent again in the backward."""

    @staticmethod
    def forward(
        ctx: Any,
        operator: str,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale: float,
        axis: Axis,
    ) -> torch.Tensor:
        ctx.operator, ctx.scale, ctx.axis = operator, scale, axis
        attend = getattr(torch.ops.autopar, operator)
        out, *more = attend(q, k, v, scale, axis.rank, axis.size, axis.group_name)
        ctx.save_for_backward(q, k, v, out, *more)
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        axis, run = ctx.axis, getattr(torch.ops.autopar, f"{ctx.operator}_backward")
        made = run(gradient, *ctx.saved_tensors, ctx.scale, axis.rank, axis.size, axis.group_name)
        return None, *made, None, None


@dataclass(frozen=True)
class Place:
    """A rank's place among those along the axis, and how its `rows` are divided."""

    rank: int
    size: int
    rows: int

    @property
    def mirror(self) -> int:
        """The rank with which halves are exchanged."""
        return self.size - 1 - self.rank

    @property
    def kept(self) -> int:
        """Rows that this rank computes itself; the others are exchanged."""
        return self.rows - self.rows // 2

    @property
    def firsts(self) -> tuple[int, int]:
        """First row in the sequence of the rows kept, and of those from the mirror."""
        return self.rank * self.rows, self.mirror * self.rows + self.kept


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    rank: int,
    size: int,
    group: str,
) -> tuple[torch.Tensor, ...]:
    """Return the result, the rows from the mirror with their result, and the log-sum-exps of both."""
    place, ranks = Place(rank, size, q.shape[2]), _torch.group_named(group)
    mine, others = place.firsts
    wait = start_permute(q[:, :, place.kept :], place.mirror, place.mirror, size, ranks)
    own, own_sum = _causal(q[:, :, : place.kept], k, v, mine, scale)
    received = wait()
    if not received.shape[2]:
        none = v.new_empty(*own.shape[:2], 0, own.shape[3])
        return joined(q, own), received, none, own_sum.contiguous()
    theirs, their_sum = _causal(received, k, v, others, scale)
    theirs = theirs.contiguous()
    back = start_permute(theirs, place.mirror, place.mirror, size, ranks)()
    return joined(q, own, back), received, theirs, torch.cat([own_sum, their_sum], 2)


def _attend_backward(
    gradient: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    received: torch.Tensor,
    theirs: torch.Tensor,
    log_sum: torch.Tensor,
    scale: float,
    rank: int,
    size: int,
    group: str,
) -> tuple[torch.Tensor, ...]:
    """Return the gradients of this rank's rows, and its parts of those of all keys and values."""
    place, ranks = Place(rank, size, q.shape[2]), _torch.group_named(group)
    mine, others = place.firsts
    kept = slice(0, place.kept)
    into = torch.zeros(k.shape, dtype=k.dtype, device=k.device), v.new_zeros(v.shape)
    wait = start_permute(gradient[:, :, place.kept :], place.mirror, place.mirror, size, ranks)
    merged = out[:, :, kept], log_sum[:, :, kept]
    of_q = _causal_backward(gradient[:, :, kept], q[:, :, kept], k, v, merged, mine, scale, into)
    given = wait()
    if not given.shape[2]:
        return joined(q, of_q), *into
    merged = theirs, log_sum[:, :, place.kept :]
    of_theirs = _causal_backward(given, received, k, v, merged, others, scale, into)
    back = start_permute(of_theirs, place.mirror, place.mirror, size, ranks)()
    return joined(q, of_q, back), *into


def seen(q: torch.Tensor, first: int, keys: int, scale: float) -> Iterator[tuple[slice, Scores]]:
    """Yield which of consecutive keys rows see; row `first` is counted from the first of the keys.

    They see those before them in full, and their own causally.
    """
    rows = q.shape[2]
    if rows and 0 <= first < keys:
        yield slice(first, first + rows), Scores(scale, is_causal=True)
    if rows and first > 0:
        yield slice(0, min(first, keys)), Scores(scale)


def parts_of(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: int, scale: float
) -> Iterator[Part]:
    """Yield attention of rows to the consecutive keys that they see."""
    for keys, scores in seen(q, first, k.shape[2], scale):
        yield attend(q, k[:, :, keys], v[:, :, keys], scores)


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: int, scale: float) -> Part:
    """Return attention of consecutive rows of the sequence, of which `first` is the first."""
    out, log_sum = reduce(merge, parts_of(q, k, v, first, scale))
    return out.to(q.dtype), log_sum


def _causal_backward(
    gradient: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    merged: Part,
    first: int,
    scale: float,
    into: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """Return the gradient of the rows, and add those of keys and values to `into`."""
    total: torch.Tensor | None = None
    for keys, scores in seen(q, first, k.shape[2], scale):
        of_q, of_k, of_v = attend_backward(
            gradient, q, k[:, :, keys], v[:, :, keys], merged, scores
        )
        total = of_q if total is None else total + of_q
        into[0][:, :, keys] += of_k
        into[1][:, :, keys] += of_v
    assert total is not None
    return total


def joined(q: torch.Tensor, *rows: torch.Tensor) -> torch.Tensor:
    """Return consecutive rows as one tensor, which is laid out as the queries are."""
    if _by_rows(q):
        return torch.cat([part.transpose(1, 2) for part in rows], 1).transpose(1, 2)
    return torch.cat(rows, 2)


def _by_rows(q: torch.Tensor) -> bool:
    """Whether the heads of a row are beside each other in memory, not the rows of a head."""
    return q.stride(1) < q.stride(2)


def _like(q: torch.Tensor, width: int) -> torch.Tensor:
    """Return an empty tensor of rows of this width, which is laid out as the queries are."""
    samples, heads, rows, _ = q.shape
    if _by_rows(q):
        return q.new_empty(samples, rows, heads, width).transpose(1, 2)
    return q.new_empty(samples, heads, rows, width)


def fake_attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    rank: int,
    size: int,
    group: str,
) -> tuple[torch.Tensor, ...]:
    samples, heads, rows, width = q.shape
    theirs = rows // 2
    return (
        _like(q, v.shape[3]),
        q.new_empty(samples, heads, theirs, width),
        q.new_empty(samples, heads, theirs, v.shape[3]),
        q.new_empty(samples, heads, rows, dtype=torch.promote_types(q.dtype, torch.float32)),
    )


def fake_backward(
    gradient: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, ...]:
    return _like(q, q.shape[3]), k.new_empty(k.shape), v.new_empty(v.shape)


PLACE = "float scale, int rank, int size, str group"
define(
    f"attend_rows(Tensor q, Tensor k, Tensor v, {PLACE}) -> (Tensor, Tensor, Tensor, Tensor)",
    _attend,
    fake_attend,
)
define(
    "attend_rows_backward(Tensor gradient, Tensor q, Tensor k, Tensor v, Tensor out, Tensor received, "
    f"Tensor theirs, Tensor log_sum, {PLACE}) -> (Tensor, Tensor, Tensor)",
    _attend_backward,
    fake_backward,
)
