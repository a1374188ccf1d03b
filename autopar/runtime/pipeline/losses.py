"""The loss of a pipeline, which one of its workers computes, on all ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist

from autopar.runtime.pipeline.built import Built


def on_all_ranks(
    built: Built, own: torch.Tensor | None, shape: tuple[int, ...], device: str
) -> torch.Tensor:
    """Return the loss (or losses, of this shape): the sum over the ranks that have an `own` one."""
    graph = next(g for g in built.stages.graphs if g.loss is not None)
    assert graph.loss is not None
    dtype = getattr(torch, graph.tensors[graph.loss].dtype)
    loss = torch.zeros(shape, dtype=dtype, device=device)
    if own is not None:
        loss += own
    dist.all_reduce(loss)
    return loss
