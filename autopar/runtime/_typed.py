"""Wraps `spmd_types`, in this file only: conversions between two plain types, and its type checker.

`spmd_types` requires contiguous inputs and incoming gradients; both are made contiguous here.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from autopar.ir.placement import I, N, P, R, S, Type
from autopar.runtime import _torch
from autopar.runtime.exchange import exchange

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
    from spmd_types.checker import typecheck

_LETTERS = {"R": spmd.R, "I": spmd.I, "P": spmd.P, "N": spmd.R}
_EXPERT = {(R, I), (I, P)}
"""Conversions for which `spmd_types` requires ``expert_mode=True``."""


class _ContiguousGradient(torch.autograd.Function):
    """Identity whose gradient is made contiguous."""

    @staticmethod
    def spmd_typecheck(*, x: torch.Tensor) -> Any:
        """Keep the type; called by the checker."""
        return spmd.rules.einsum("...->...", x, linear_in=(0,))

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.contiguous()


def contiguous_gradient(x: torch.Tensor) -> torch.Tensor:
    """Return `x`; its gradient is made contiguous."""
    if not x.requires_grad:
        return x
    return _ContiguousGradient.apply(x)  # type: ignore[no-any-return]


def own(made: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return `made` in its own storage, so that a slice of `x` does not keep all of it alive."""
    shared = made.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    return made.clone() if shared else made


def step(
    x: torch.Tensor,
    group: dist.ProcessGroup,
    source: Type,
    target: Type,
    reduce: torch.dtype | None = None,
) -> torch.Tensor:
    """Convert from one type to another; shards here have ``of=1``.

    Gradients are summed in `reduce`, or in their own dtype.
    """
    ends = {"src": _type(source), "dst": _type(target)}
    backward = {"op_dtype": reduce or x.dtype}
    if {source, target} <= {R, I, N}:
        # The value does not change, and may be a view with any strides.
        made = spmd.convert(x, group, **ends, expert_mode=True, backward_options=backward)
        return contiguous_gradient(made)
    x = contiguous_gradient(x.contiguous())
    if isinstance(source, S) and isinstance(target, S) and not _torch.exchanges_lists(x):
        return contiguous_gradient(exchange(x, group, source.dim, target.dim).contiguous())
    if (source, target) in _EXPERT:
        made = spmd.convert(x, group, **ends, expert_mode=True, backward_options=backward)
    else:
        made = spmd.redistribute(x, group, **ends, backward_options=backward)
    return contiguous_gradient(own(made.contiguous(), x))


def _type(kind: Type) -> Any:
    return spmd.S(kind.dim) if isinstance(kind, S) else _LETTERS[kind.name]


Derived = tuple[dict[str, str], tuple[tuple[str, ...], ...]]
"""The checker's type of a tensor: a letter per axis (V if split), and the axes that split each dim."""
REFUSED = spmd.SpmdTypeError


@contextmanager
def checking() -> Iterator[None]:
    """Let operators inside derive the types of their results from those of their operands."""
    with typecheck(local=False):
        yield


def declare(x: torch.Tensor, types: Mapping[str, Type], mesh: DeviceMesh) -> torch.Tensor:
    """Give `x` a type on each axis; axes that split the same dim do so in the order given."""
    splits = [
        tuple(mesh.get_group(name) for name, kind in types.items() if kind == S(dim))
        for dim in range(x.dim())
    ]
    letters = {
        mesh.get_group(name): spmd.V if isinstance(kind, S) else _LETTERS[kind.name]
        for name, kind in types.items()
    }
    spec = spmd.PartitionSpec(*(s[0] if len(s) == 1 else s or None for s in splits))
    spmd.assert_type(x, letters, partition_spec=spec if any(splits) else None)
    return x


def derived(x: torch.Tensor) -> Derived:
    """Return the checker's type of `x`."""
    letters = {str(axis): str(kind) for axis, kind in spmd.get_local_type(x).items()}
    spec = spmd.get_partition_spec(x) or (None,) * x.dim()
    dims = (() if s is None else s if isinstance(s, tuple) else (s,) for s in spec)
    return letters, tuple(tuple(map(str, axes)) for axes in dims)
