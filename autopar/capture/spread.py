"""Stores and computes values with many equal rows as one row: positions of a large batch, full masks.

Such a tensor is stored once and expanded over its other dims with stride 0. Values can therefore be
tracked for large batches, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from autopar.capture import _torch

ALONG = frozenset(["cumsum", "cumprod", "cat", "flip", "diff", "logcumsumexp"])
"""Operators that mix entries along the dim that they name, and along no other."""
OVER_ALL = frozenset(["all", "any", "max", "min", "amax", "amin"])
"""Reductions that give the same result for one row and for many equal rows."""
FILLED = frozenset(["full", "ones", "zeros"])
COPIED_VIEWS = frozenset(["_unsafe_view"])
"""What a reshape calls after a copy: the copy of equal rows may still be stored once."""
BY_STRIDES = frozenset(["as_strided", "as_strided_copy"])


def computed(
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    shapes: Sequence[Sequence[int]],
    largest: int,
) -> Any:
    """Return the operator's results, of these shapes, or None if they would need too many elements."""
    operands = list(_tensors((*args, *kwargs.values())))
    name = _torch.operator_name(func)
    if name in FILLED and len(shapes) == 1:
        return _filled(func, args, kwargs, shapes[0])
    total = sum(map(math.prod, shapes))
    is_view = _torch.is_view(func) or name in COPIED_VIEWS
    if any(operand.numel() > _stored(operand) for operand in operands):
        dims = _free(func, name, args, kwargs, operands, shapes)
        if dims is None and is_view and name not in BY_STRIDES:
            return _viewed(func, args, kwargs, total <= largest)
        if name in BY_STRIDES:
            return None
        if dims:
            return _narrowed(func, args, kwargs, dims, shapes[0], largest)
    if is_view and name not in BY_STRIDES:
        return _viewed(func, args, kwargs, total <= largest)
    return func(*args, **kwargs) if total <= largest or is_view else None


def one_row(value: torch.Tensor) -> torch.Tensor:
    """Return the entries that are stored, each of them once."""
    for dim, (size, stride) in enumerate(zip(value.shape, value.stride(), strict=True)):
        if stride == 0 and size > 1:
            value = value.narrow(dim, 0, 1)
    return value


def _stored(value: torch.Tensor) -> int:
    return one_row(value).numel()


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _tensors(value)
        elif isinstance(value, torch.Tensor):
            yield value


def _filled(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Any) -> Any:
    return (
        func([1] * len(shape), *args[1:], **kwargs).expand(*shape)
        if shape
        else func(*args, **kwargs)
    )


def _viewed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], small: bool) -> Any:
    """Return a view; if stride 0 does not allow it, compute it on copies if they are `small`."""
    try:
        return func(*args, **kwargs)
    except RuntimeError:
        dense = _torch.tree_map(
            lambda x: x.contiguous() if isinstance(x, torch.Tensor) else x,
            (list(args), dict(kwargs)),
        )
        return func(*dense[0], **dense[1]) if small else None


def _free(
    func: Any,
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    operands: Sequence[torch.Tensor],
    shapes: Sequence[Sequence[int]],
) -> set[int] | None:
    """Return the dims, counted from the end, along which all entries are equal.

    Return None if that does not follow for the result of this kind of operator.
    """
    if len(shapes) != 1:
        return None
    rank = max(operand.dim() for operand in operands)
    dims = {d for d in range(-rank, 0) if all(_is_spread(operand, d) for operand in operands)}
    if torch.Tag.pointwise in func.tags:
        return dims
    if name in OVER_ALL and len(args) == 1 and not kwargs:
        return dims
    if name in ALONG and len({operand.dim() for operand in operands}) == 1:
        dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
        named = {d % rank for d in (dim if isinstance(dim, list | tuple) else [dim])}
        return {d for d in dims if d % rank not in named}
    return None


def _is_spread(operand: torch.Tensor, dim: int) -> bool:
    if -dim > operand.dim() or operand.shape[dim] == 1:
        return True
    return operand.stride(dim) == 0


def _narrowed(
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dims: set[int],
    shape: Sequence[int],
    largest: int,
) -> Any:
    """Run the operator on one entry of each of these dims, and expand the result over them."""
    across = math.prod(shape[d] for d in dims if -d <= len(shape))
    if math.prod(shape) > largest * max(across, 1):
        return None

    def narrow(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(narrow, value))
        if isinstance(value, torch.Tensor):
            for dim in dims:
                if -dim <= value.dim():
                    value = value.narrow(dim, 0, min(1, value.shape[dim]))
        return value

    made = func(*map(narrow, args), **{key: narrow(value) for key, value in kwargs.items()})
    return made.expand(*shape) if len(shape) else made
