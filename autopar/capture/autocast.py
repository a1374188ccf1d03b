"""Makes autocast explicit: finds which operands an operator casts inside an autocast region.

Tracing runs under real autocast, so the recorded dtypes are right; only the casts are hidden inside
the operators. Each distinct (operator, operand dtypes) is run once on fake tensors under autocast,
up to its first real operation. What it casts before that operation is its policy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from autopar.capture import _torch
from autopar.capture._torch import TorchDispatchMode, tree_flatten, tree_map


@dataclass(frozen=True)
class Region:
    """An autocast region as its enter marker states it."""

    device: str
    dtype: torch.dtype
    enabled: bool


class _Stop(Exception):
    """Raised at the first operation after the operator's casts."""


class _Casts(TorchDispatchMode):
    """Records the dtype that each tensor is cast to, and stops at the first other operation."""

    def __init__(self) -> None:
        super().__init__()
        self.to: dict[int, torch.dtype] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._to_copy.default:
            result = func(*args, **(kwargs or {}))
            self.to[id(args[0])] = result.dtype
            return result
        if func is torch.ops.prim.device.default:  # autocast reads a tensor's device
            return func(*args, **(kwargs or {}))
        raise _Stop


class Policies:
    """Casts per operator and operand dtypes, each found once."""

    def __init__(self) -> None:
        self._found: dict[Any, tuple[torch.dtype | None, ...]] = {}

    def casts(
        self, operator: Callable[..., Any], args: Any, kwargs: Any, wanted: Any, region: Region
    ) -> tuple[torch.dtype | None, ...] | None:
        """Return the dtype that each tensor operand is cast to (None: not cast), in argument order.

        `wanted` is the recorded output. Return None if no cast of the operands explains its dtypes.
        """
        flat, _ = tree_flatten((args, kwargs))
        key = (
            operator,
            region,
            tuple(v.dtype if isinstance(v, torch.Tensor) else None for v in flat),
            _dtypes(wanted),
        )
        if key not in self._found:
            found = _explained(operator, args, kwargs, wanted, region)
            if found is None:
                return None
            self._found[key] = found
        return self._found[key]


def _explained(
    operator: Callable[..., Any], args: Any, kwargs: Any, wanted: Any, region: Region
) -> tuple[torch.dtype | None, ...] | None:
    with _torch.fake_mode_of(wanted, args, kwargs):
        tensors = [v for v in tree_flatten((args, kwargs))[0] if isinstance(v, torch.Tensor)]
        fresh = {id(t): torch.empty_like(t, requires_grad=False) for t in tensors}
        args, kwargs = _replaced((args, kwargs), fresh)
        observed = _observed(operator, args, kwargs, [fresh[id(t)] for t in tensors], region)
        outcomes = {
            dtype for dtype in _dtypes(wanted) if dtype is not None and dtype.is_floating_point
        }
        uniform = [
            tuple(outcome if _eligible(t) else None for t in tensors) for outcome in outcomes
        ]
        for casts in (observed, *uniform):
            new = {
                id(fresh[id(t)]): torch.empty_like(t, dtype=dtype or t.dtype, requires_grad=False)
                for t, dtype in zip(tensors, casts, strict=True)
            }
            try:
                result = operator(*_replaced(args, new), **_replaced(kwargs, new))
            except RuntimeError:
                continue  # the operator rejects these dtypes, so they are not the explanation
            if _dtypes(result) == _dtypes(wanted):
                return casts
    return None


def _observed(
    operator: Callable[..., Any],
    args: Any,
    kwargs: Any,
    tensors: list[torch.Tensor],
    region: Region,
) -> tuple[torch.dtype | None, ...]:
    watch = _Casts()
    try:
        with torch.autocast(region.device, region.dtype, cache_enabled=False), watch:
            operator(*args, **kwargs)
    except _Stop:
        pass
    return tuple(watch.to.get(id(t)) for t in tensors)


def _eligible(tensor: torch.Tensor) -> bool:
    """Return whether autocast may cast a tensor; it does not cast float64 and integers."""
    return tensor.is_floating_point() and tensor.dtype is not torch.float64


def _replaced(value: Any, new: dict[int, torch.Tensor]) -> Any:
    return tree_map(lambda v: new[id(v)] if isinstance(v, torch.Tensor) else v, value)


def _dtypes(value: Any) -> tuple[torch.dtype | None, ...]:
    return tuple(getattr(v, "dtype", None) for v in tree_flatten(value)[0])
