"""Gradient clipping over shards; each element counts once, whatever the layout."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate

from autopar.ir.mesh import Mesh
from autopar.runtime import _torch
from autopar.runtime.axes import Axes
from autopar.runtime.sharded_parameter import ShardedParameter


@torch.no_grad()
def clip_grad_norm_(
    slots: Sequence[ShardedParameter], mesh: Mesh, axes: Axes, max_norm: float, norm_type: float
) -> torch.Tensor:
    """Scale gradients in place; return the norm before scaling, equal on all ranks."""
    norm = total_norm(gradients(slots), mesh, axes, norm_type)
    shrink(slots, norm, max_norm)
    return norm


def gradients(slots: Sequence[ShardedParameter]) -> list[DTensor]:
    """Return the gradients that exist."""
    found = (slot.parameter.grad for slot in slots)
    return [gradient for gradient in found if isinstance(gradient, DTensor)]


def shrink(slots: Sequence[ShardedParameter], norm: torch.Tensor, max_norm: float) -> None:
    """Scale gradients, whose norm is `norm`, in place to a norm of at most `max_norm`."""
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients(slots):
        local = _torch.local_of(gradient)
        local.mul_(scale.to(local.device, local.dtype))


def total_norm(found: Sequence[DTensor], mesh: Mesh, axes: Axes, norm_type: float) -> torch.Tensor:
    """Return the norm over all elements of all gradients, equal on all ranks."""
    groups: defaultdict[tuple[str, ...], list[torch.Tensor]] = defaultdict(list)
    for gradient in found:
        layout = zip(mesh.names, mesh.sizes, gradient.placements, strict=True)
        split = tuple(n for n, size, kind in layout if size > 1 and not isinstance(kind, Replicate))
        groups[split].append(_torch.local_of(gradient))
    largest = norm_type == float("inf")
    parts = []
    for split, tensors in sorted(groups.items()):
        wide = [t.float() if t.dtype in (torch.float16, torch.bfloat16) else t for t in tensors]
        norm = torch.stack([_norm(t, norm_type) for t in wide])
        part = norm.max() if largest else (norm**norm_type).sum()
        for name in split:
            op = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
            dist.all_reduce(part, op=op, group=axes[name].group)
        parts.append(part)
    if not parts:
        return torch.zeros(())
    whole = torch.stack(parts)
    total = whole.max() if largest else whole.sum() ** (1.0 / norm_type)
    return total.to(torch.float32 if found[0].dtype != torch.float64 else torch.float64)


def _norm(tensor: torch.Tensor, norm_type: float) -> torch.Tensor:
    """Return the norm of a rank's part, which may be empty, in float64."""
    if not tensor.numel():
        return torch.zeros((), dtype=torch.float64, device=tensor.device)
    norm: torch.Tensor = torch.linalg.vector_norm(tensor, norm_type)
    return norm.double()
