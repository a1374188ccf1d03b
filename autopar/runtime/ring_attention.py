"""Causal attention of a sequence whose keys and values are split like its rows, and pass around a ring.

Rank r of n has block r of rows, keys and values.  In n steps it sees the keys and values of every rank:
it sends those that it has to rank r + 1 while it computes with them (Liu, Zaharia and Abbeel 2023).  In
the backward their gradients travel along, and each rank adds its part.  No rank ever holds more than two
blocks of them.  Halves of the rows are exchanged between mirrors, as in `sequence_attention.py`, so that
all ranks do the same work.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from autopar.runtime import _torch
from autopar.runtime.attention_parts import Part, attend_backward, merge
from autopar.runtime.axes import Axis
from autopar.runtime.kernels import define, start_permute
from autopar.runtime.sequence_attention import (
    PLACE,
    Place,
    attended,
    checked_scale,
    fake_attend,
    fake_backward,
    joined,
    parts_of,
    seen,
)

Wait = Callable[[], torch.Tensor]


def ring_attention(
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
    """`F.scaled_dot_product_attention` with ``is_causal=True`` of this rank's block of the sequence.

    query [b, h, s / ranks, d], key [b, a, s / ranks, d] and value [b, a, s / ranks, e].  Returns
    [b, h, s / ranks, e].  Raises `TypeError` for numbers that are not floating-point.
    """
    scale = checked_scale(query, key, value, scale, 1)
    return attended("ring_rows", query, key, value, scale, axis)


def _ring(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    rank: int,
    size: int,
    group: str,
) -> tuple[torch.Tensor, ...]:
    """Return what `attend_rows` does, with one block of keys and values on each rank."""
    place, ranks = Place(rank, size, q.shape[2]), _torch.group_named(group)
    wait = start_permute(q[:, :, place.kept :], place.mirror, place.mirror, size, ranks)
    pair = _flat(k, v)
    received: torch.Tensor | None = None
    own: Part | None = None
    theirs: Part | None = None
    for step in range(size):
        come: Wait | None = None
        if step < size - 1:
            come = start_permute(pair, (rank + 1) % size, (rank - 1) % size, size, ranks)
        received = wait() if received is None else received
        keys, values = _apart(pair, k, v)
        start = (rank - step) % size * place.rows
        own = _more(own, q[:, :, : place.kept], keys, values, place.firsts[0] - start, scale)
        theirs = _more(theirs, received, keys, values, place.firsts[1] - start, scale)
        pair = pair if come is None else come()
    assert own is not None and received is not None
    mine = own[0].to(q.dtype)
    if theirs is None:
        none = v.new_empty(*mine.shape[:2], 0, mine.shape[3])
        return joined(q, mine), received, none, own[1].contiguous()
    made = theirs[0].to(q.dtype).contiguous()
    back = start_permute(made, place.mirror, place.mirror, size, ranks)()
    return joined(q, mine, back), received, made, torch.cat([own[1], theirs[1]], 2)


def _more(
    part: Part | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    first: int,
    scale: float,
) -> Part | None:
    """Merge attention to a block of keys into a part; row `first` is relative to the block's keys."""
    for found in parts_of(q, k, v, first, scale):
        part = found if part is None else merge(part, found)
    return part


def _ring_backward(
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
    """Return the gradients of this rank's rows, keys and values."""
    place, ranks = Place(rank, size, q.shape[2]), _torch.group_named(group)
    kept, right, left = slice(0, place.kept), (rank + 1) % size, (rank - 1) % size
    given = start_permute(gradient[:, :, place.kept :], place.mirror, place.mirror, size, ranks)()
    halves = [
        (gradient[:, :, kept], q[:, :, kept], (out[:, :, kept], log_sum[:, :, kept])),
        (given, received, (theirs, log_sum[:, :, place.kept :])),
    ]
    of_q = [torch.zeros(x.shape, dtype=log_sum.dtype, device=q.device) for _, x, _ in halves]
    pair = _flat(k, v)
    sums = torch.zeros(pair.shape, dtype=log_sum.dtype, device=pair.device)
    for step in range(size):
        come: Wait | None = None
        if step < size - 1:
            come = start_permute(pair, right, left, size, ranks)
        keys, values = _apart(pair, k, v)
        into = _apart(sums, k, v)
        start = (rank - step) % size * place.rows
        for total, (arrived, rows, merged), first in zip(of_q, halves, place.firsts, strict=True):
            for where, scores in seen(rows, first - start, k.shape[2], scale):
                found = attend_backward(
                    arrived, rows, keys[:, :, where], values[:, :, where], merged, scores
                )
                total += found[0]
                into[0][:, :, where] += found[1]
                into[1][:, :, where] += found[2]
        pair = pair if come is None else come()
        sums = start_permute(sums, right, left, size, ranks)()
    of_k, of_v = (x.to(k.dtype) for x in _apart(sums, k, v))
    rows_of_q = [total.to(q.dtype) for total in of_q]
    if not given.shape[2]:
        return joined(q, rows_of_q[0]), of_k.clone(), of_v.clone()
    back = start_permute(rows_of_q[1], place.mirror, place.mirror, size, ranks)()
    return joined(q, rows_of_q[0], back), of_k.clone(), of_v.clone()


def _flat(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return keys and values as one message."""
    return torch.cat([k.reshape(-1), v.reshape(-1)])


def _apart(pair: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return views of a message as keys and values."""
    keys, values = pair.split([k.numel(), v.numel()])
    return keys.view(k.shape), values.view(v.shape)


define(
    f"ring_rows(Tensor q, Tensor k, Tensor v, {PLACE}) -> (Tensor, Tensor, Tensor, Tensor)",
    _ring,
    fake_attend,
)
define(
    "ring_rows_backward(Tensor gradient, Tensor q, Tensor k, Tensor v, Tensor out, Tensor received, "
    f"Tensor theirs, Tensor log_sum, {PLACE}) -> (Tensor, Tensor, Tensor)",
    _ring_backward,
    fake_backward,
)
