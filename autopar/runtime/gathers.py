"""All-gathers of several tensors at once.

gloo's own coalesced all-gather corrupts the heap when several are on their way (torch 2.13;
`benchmarks/gloo_gathers.py`).  On gloo, small tensors travel as one tensor of bytes, and large ones in a
collective each, which saves copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from autopar.runtime import _torch

Tensors = Sequence[torch.Tensor]
LARGE = 1 << 20
"""Bytes of a rank's parts above which gloo gathers each of them in a collective of its own."""


def all_gather_many(
    made: Tensors, parts: Tensors, group: dist.ProcessGroup, waits: bool = True
) -> Callable[[], object]:
    """All-gather each of these parts into its own tensor.

    Return what waits for it, unless that was done (`waits`).
    """
    if len(made) == 1 or not _torch.is_gloo(group, made[0].device):
        return _torch.all_gather_coalesced(made, parts, group, waits)
    is_large = sum(part.nbytes for part in parts) > LARGE
    finish = (_each if is_large else _in_bytes)(made, parts, group)
    if waits:
        finish()
        return _torch.nothing
    return finish


def _each(made: Tensors, parts: Tensors, group: dist.ProcessGroup) -> Callable[[], None]:
    works = [
        _torch.all_gather_single(into.view(-1), part.reshape(-1), group=group, async_op=True)
        for into, part in zip(made, parts, strict=True)
    ]

    def finish() -> None:
        for work in works:
            work.wait()

    return finish


def _in_bytes(made: Tensors, parts: Tensors, group: dist.ProcessGroup) -> Callable[[], None]:
    """Gather all parts as one tensor.

    The message is the backend's own, as that of a coalesced gather: modes that count the memory of a
    step do not see it.
    """
    with _torch.disable_current_modes():
        sent = torch.cat([part.detach().reshape(-1).view(torch.uint8) for part in parts])
        come = sent.new_empty((group.size(), sent.numel()))
    work = _torch.all_gather_single(come.view(-1), sent, group=group, async_op=True)
    sizes = [part.nbytes for part in parts]

    def finish() -> None:
        work.wait()
        with torch.no_grad(), _torch.disable_current_modes():
            for whole, piece in zip(made, come.split(sizes, 1), strict=True):
                whole.detach().view(-1).view(torch.uint8).view(piece.shape).copy_(piece)

    return finish
