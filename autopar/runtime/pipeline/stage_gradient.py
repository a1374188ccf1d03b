"""A DTensor for gradients of a stage's parameters, which refuses norms over this rank's stages alone.

Values computed from one gradient may be read.  Norms, which users add up as Python numbers, and scalars
that combine several gradients would cover this rank's stages only, and are refused.  Optimizers that
take norms in their steps get plain whole gradients (`autopar.runtime.whole_step`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from autopar.errors import InputError
from autopar.runtime import _torch

REMEDY = (
    "Call parallel.clip_grad_norm_(max_norm) instead of torch.nn.utils.clip_grad_norm_: it clips by the "
    "whole model's norm and returns it (float('inf') clips nothing)."
)
COPIES: tuple[Any, ...] = (
    torch.Tensor.clone, torch.clone, torch.Tensor.detach, torch.detach,
    torch.zeros_like, torch.empty_like, torch.ones_like, torch.full_like,
)  # fmt: skip
"""Functions with which optimizers create their states, which are plain DTensors."""


class StageGradient(DTensor):
    """A DTensor that refuses clipping by the norm of this rank's stages alone."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _torch.NORMS:
            raise InputError(
                "This norm covers only the gradients of this rank's stages; those of other "
                f"stages are on other ranks. {REMEDY}"
            )
        made = _torch.plain_function(func, types, args, kwargs or {})
        return made if func in COPIES else _marked(made, args)


class StageNumber(DTensor):
    """A scalar computed from one parameter's gradient; it may be read but not combined with others."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if sum(isinstance(each, StageNumber) for each in _tensors(args)) > 1:
            raise InputError(
                "Values of several parameters' gradients are combined here: that covers only "
                f"this rank's stages, and those of other stages are on other ranks. {REMEDY}"
            )
        return _marked(_torch.plain_function(func, types, args, kwargs or {}), args)


def _tensors(args: tuple[Any, ...]) -> Iterator[torch.Tensor]:
    """Yield the tensors among arguments, and in lists and tuples of them."""
    for arg in args:
        every = arg if isinstance(arg, list | tuple) else [arg]
        yield from (each for each in every if isinstance(each, torch.Tensor))


def _marked(made: Any, args: tuple[Any, ...]) -> Any:
    """Convert a new DTensor result to a `StageGradient`, or a `StageNumber` if it is a scalar of one."""
    if type(made) is not DTensor or any(made is each for each in _tensors(args)):
        return made
    from_tensors = any(
        isinstance(each, StageGradient) and each._spec.ndim > 0 for each in _tensors(args)
    )
    is_number = made._spec.ndim == 0 and (
        from_tensors or any(isinstance(each, StageNumber) for each in _tensors(args))
    )
    kind = StageNumber if is_number else StageGradient
    return _torch.dtensor(_torch.local_of(made), made._spec, kind)
