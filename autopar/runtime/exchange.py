"""Shard-to-shard all-to-all on single tensors, for backends that take no lists of tensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class _Exchange(torch.autograd.Function):
    """An all-to-all between two dims; the backward is the reverse one."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, group: dist.ProcessGroup, source: int, target: int
    ) -> torch.Tensor:
        ctx.group, ctx.source, ctx.target = group, source, target
        return _moved(x, group, source, target)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return _moved(gradient, ctx.group, ctx.target, ctx.source), None, None, None


def exchange(x: torch.Tensor, group: dist.ProcessGroup, source: int, target: int) -> torch.Tensor:
    """Move the split from dim `source` to dim `target`; differentiable."""
    return _Exchange.apply(x, group, source, target)  # type: ignore[no-any-return]


def _moved(x: torch.Tensor, group: dist.ProcessGroup, source: int, target: int) -> torch.Tensor:
    leaving = x.unflatten(target, (group.size(), -1)).movedim(target, 0).contiguous()
    come = torch.empty_like(leaving)
    dist.all_to_all_single(come, leaving, group=group)
    made: torch.Tensor = come.movedim(0, source).flatten(source, source + 1)
    return made
