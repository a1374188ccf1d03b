"""The only file of `request` that uses names torch calls private."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import SUPPORTED_NODES

Opened = tuple[list[Any], Callable[[list[Any]], Any]]
"""What is inside, and how the same is made of other things."""


def opened(value: Any) -> Opened | None:
    """A value of a type that is registered with pytree; None for others."""
    definition = SUPPORTED_NODES.get(type(value))
    if definition is None:
        return None
    children, context = definition.flatten_fn(value)
    return list(children), lambda made: definition.unflatten_fn(made, context)


def context_of(value: Any) -> Any:
    """What a registered type keeps beside its children."""
    return SUPPORTED_NODES[type(value)].flatten_fn(value)[1]


def has_gradient_hooks(parameter: torch.Tensor) -> bool:
    """Whether the user registered hooks on a leaf's gradient."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)
