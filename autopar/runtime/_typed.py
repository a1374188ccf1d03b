"""The only file that knows `spmd_types`: one differentiable step between two plain types on a group.

`spmd_types` checks contiguity of what comes in and of gradients that come back; both are made so here.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist

from autopar.placement import I, P, R, S, Type

# spmd_types 0.3 uses names that torch 2.13 deprecates; exactly these warnings are silenced.
warnings.filterwarnings(
    "ignore",
    message=r"`torch\.distributed\.\S*(all_gather|reduce_scatter)\w*_tensor` is deprecated",
    category=FutureWarning,
)
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    import spmd_types as spmd

_LETTERS = {"R": spmd.R, "I": spmd.I, "P": spmd.P, "N": spmd.R}
_EXPERT = {(R, I), (I, P)}
"""Steps in which `spmd_types` wants to be told that we mean it."""


class _Contiguous(torch.autograd.Function):
    """Identity that makes values contiguous forward and gradients contiguous backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x) if x.is_contiguous() else x.contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient.contiguous()


def contiguous(x: torch.Tensor) -> torch.Tensor:
    """`x` contiguous, and its gradient too."""
    if not x.requires_grad:
        return x.contiguous()
    return _Contiguous.apply(x)  # type: ignore[no-any-return,no-untyped-call]


def step(x: torch.Tensor, group: dist.ProcessGroup, source: Type, target: Type) -> torch.Tensor:
    """Move from one type to another; shards here have ``of=1``."""
    src, dst = _type(source), _type(target)
    if (source, target) in _EXPERT:
        made = spmd.convert(contiguous(x), group, src=src, dst=dst, expert_mode=True)
    else:
        made = spmd.redistribute(contiguous(x), group, src=src, dst=dst)
    return contiguous(made)


def _type(kind: Type) -> Any:
    return spmd.S(kind.dim) if isinstance(kind, S) else _LETTERS[kind.name]

