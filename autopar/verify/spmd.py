"""Wraps `spmd_types`, in this file only: its type checker, and conversions that the checker follows.

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
from autopar.runtime.axes import Axis

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


def _plain_step(
    x: torch.Tensor, group: dist.ProcessGroup, source: Type, target: Type
) -> torch.Tensor:
    """Convert from one type to another; shards here have ``of=1``."""
    ends = {"src": _type(source), "dst": _type(target)}
    backward = {"op_dtype": x.dtype}
    if {source, target} <= {R, I, N}:
        # The value does not change, and may be a view with any strides.
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


def convert(
    x: torch.Tensor, axis: Axis, source: Type, target: Type, *_: object, **__: object
) -> torch.Tensor:
    """Stand in for the runtime's conversions in statements that are checked."""
    return x if axis.size == 1 else _step(x, axis.group, axis.size, source, target)


def convert_together(
    axis: Axis, target: Type, *weights: tuple[torch.Tensor, Type, str], **_: object
) -> list[torch.Tensor]:
    """Stand in for the runtime's conversions of several weights."""
    return [convert(x, axis, source, target) for x, source, _ in weights]


def _step(
    x: torch.Tensor, group: dist.ProcessGroup, size: int, source: Type, target: Type
) -> torch.Tensor:
    if isinstance(source, S) and isinstance(target, S):
        return _exchange(x, group, size, source, target)
    if isinstance(source, S):
        apart, plain = _unflatten(x, source)
        return _flatten(_plain_step(apart, group, plain, target), source)
    if isinstance(target, S):
        apart, plain = _unflatten(x, target)
        return _flatten(_plain_step(apart, group, source, plain), target)
    return _plain_step(x, group, source, target)


def _unflatten(x: torch.Tensor, shard: S) -> tuple[torch.Tensor, S]:
    """Return a view with the shard's blocks in a dim of their own, and the plain shard of that view."""
    if shard.of == 1:
        return x, shard
    return x.unflatten(shard.dim, (shard.of, -1)), S(shard.dim + 1)


def _flatten(x: torch.Tensor, shard: S) -> torch.Tensor:
    return x if shard.of == 1 else x.flatten(shard.dim, shard.dim + 1)


def _exchange(
    x: torch.Tensor, group: dist.ProcessGroup, size: int, source: S, target: S
) -> torch.Tensor:
    """Convert shard to shard by an all-to-all between two plain dims of a view."""
    if source.dim == target.dim:
        return _exchange_inside(x, group, size, source, target)
    if source.of == target.of == 1:
        return _plain_step(x, group, source, target)
    # The later dim is unflattened first, so that the index of the earlier one stays valid.
    shape = x.shape
    apart = x
    for shard in sorted((source, target), key=lambda s: -s.dim):
        apart = apart.unflatten(shard.dim, (shard.of, -1))
    shift = {min(source.dim, target.dim): 1, max(source.dim, target.dim): 2}
    plain = [S(shard.dim + shift[shard.dim]) for shard in (source, target)]
    moved = _plain_step(apart, group, plain[0], plain[1])
    sizes = list(shape)
    sizes[source.dim] *= size
    sizes[target.dim] //= size
    return moved.reshape(sizes)


def _exchange_inside(
    x: torch.Tensor, group: dist.ProcessGroup, size: int, source: S, target: S
) -> torch.Tensor:
    """Move the split within one dim, seen as [outer, size, middle, size, inner]: from one `size`
    dim to the other."""
    first, second = sorted((source.of, target.of))
    middle = second // (first * size)
    parts = (1, size) if source.of == first else (size, 1)
    dim = source.dim
    apart = x.unflatten(dim, (first, parts[0], middle, parts[1], -1))
    early, late = S(dim + 1), S(dim + 3)
    ends = (early, late) if source.of == first else (late, early)
    return _plain_step(apart, group, *ends).reshape(x.shape)


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
