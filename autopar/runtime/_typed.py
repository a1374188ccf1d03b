"""The only file that knows `spmd_types`: one differentiable step between two plain types on a group.

`spmd_types` checks contiguity of what comes in and of gradients that come back; both are made so here.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist

from autopar.placement import I, N, P, R, S, Type

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


class _ContiguousGradient(torch.autograd.Function):
    """Identity whose gradient is made contiguous."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.contiguous()


def contiguous_gradient(x: torch.Tensor) -> torch.Tensor:
    """`x` itself; its gradient arrives contiguous."""
    if not x.requires_grad:
        return x
    return _ContiguousGradient.apply(x)  # type: ignore[no-any-return]


def own(made: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`made` in a storage of its own, so that a slice does not keep the whole tensor alive."""
    shared = made.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    return made.clone() if shared else made


def step(
    x: torch.Tensor,
    group: dist.ProcessGroup,
    source: Type,
    target: Type,
    reduce: torch.dtype | None = None,
) -> torch.Tensor:
    """Move from one type to another; shards here have ``of=1``.

    Gradients are summed in `reduce`, or in their own dtype.
    """
    ends = {"src": _type(source), "dst": _type(target)}
    backward = {"op_dtype": reduce or x.dtype}
    if {source, target} <= {R, I, N}:
        # The value stays what it is, and may be a view with any strides.
        made = spmd.convert(x, group, **ends, expert_mode=True, backward_options=backward)
        return contiguous_gradient(made)
    x = contiguous_gradient(x.contiguous())
    if (source, target) in _EXPERT:
        made = spmd.convert(x, group, **ends, expert_mode=True, backward_options=backward)
    else:
        made = spmd.redistribute(x, group, **ends, backward_options=backward)
    return contiguous_gradient(own(made.contiguous(), x))


def _type(kind: Type) -> Any:
    return spmd.S(kind.dim) if isinstance(kind, S) else _LETTERS[kind.name]
