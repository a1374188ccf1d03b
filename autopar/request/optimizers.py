"""The optimizer that somebody will use: its name, what it keeps, and whether its step is one kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from autopar.errors import InputError

OptimizerLike = type[torch.optim.Optimizer] | partial[torch.optim.Optimizer] | str
"""A class; one with arguments, of which `fused` counts; or either as text: ``"AdamW(fused=True)"``."""
FUSED = "(fused=True)"


def name_of(optimizer: OptimizerLike | Callable[..., torch.optim.Optimizer]) -> str:
    """As plans name it."""
    if isinstance(optimizer, str):
        return optimizer
    if isinstance(optimizer, partial):
        return name_of(optimizer.func) + (FUSED if optimizer.keywords.get("fused") else "")
    return getattr(optimizer, "__name__", str(optimizer))


def is_fused(name: str) -> bool:
    """Whether one kernel updates a parameter, in place of one per operator."""
    return name.endswith(FUSED)


def states_of(optimizer: OptimizerLike) -> float:
    """How much state an optimizer keeps per parameter, in tensors of its size: tried out.

    Raises `InputError` where that is more or less than one of its name keeps, which is all that a plan
    records.
    """
    keeps, name = _tried(optimizer), name_of(optimizer)
    if isinstance(optimizer, partial) and hasattr(torch.optim, name.removesuffix(FUSED)):
        usual = _tried(name)
        if keeps != usual:
            raise InputError(
                f"With these arguments {name} keeps {keeps:g} tensors of a parameter's size, and "
                f"{usual:g} without; plans know optimizers by name. Leave the arguments out of "
                "optimizer=, or pass one that keeps as much; you may train with any."
            )
    return keeps


def _tried(optimizer: OptimizerLike) -> float:
    kind = _kind(optimizer)
    parameter = torch.nn.Parameter(torch.ones(64, 64))
    parameter.grad = torch.ones(64, 64)
    try:
        built = kind([parameter])
        built.step()
    except Exception as error:
        raise InputError(
            f"optimizer={name_of(optimizer)} cannot be tried out to see how much state it keeps "
            f"({type(error).__name__}: {error}). Pass one that keeps as much, e.g. optimizer='AdamW'; "
            "you may train with any."
        ) from error
    tensors = [v for v in built.state[parameter].values() if isinstance(v, torch.Tensor)]
    return sum(tensor.numel() for tensor in tensors if tensor.dim()) / parameter.numel()


def _kind(optimizer: OptimizerLike) -> Any:
    """What makes one of a list of parameters."""
    if not isinstance(optimizer, str):
        return optimizer
    kind = getattr(torch.optim, optimizer.removesuffix(FUSED), None)
    if not isinstance(kind, type):
        known = ", ".join(n for n in dir(torch.optim) if n[0].isupper() and n != "Optimizer")
        raise InputError(
            f"torch.optim has no optimizer {optimizer!r}; it has {known}, and some of these fused: "
            f"'AdamW{FUSED}'."
        )
    return partial(kind, fused=True) if is_fused(optimizer) else kind
