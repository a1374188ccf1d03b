"""The only file of `request` that uses names torch calls private."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import SUPPORTED_NODES

Opened = tuple[list[Any], Callable[[list[Any]], Any]]
"""The children of a container, and a function that rebuilds it from other children."""


def opened(value: Any) -> Opened | None:
    """Flatten one level of a value whose type is registered with pytree; None for other types."""
    definition = SUPPORTED_NODES.get(type(value))
    if definition is None:
        return None
    children, context = definition.flatten_fn(value)
    return list(children), lambda made: definition.unflatten_fn(made, context)


def context_of(value: Any) -> Any:
    """Return the pytree context of a value: what its registered type holds besides its children."""
    return SUPPORTED_NODES[type(value)].flatten_fn(value)[1]


def has_gradient_hooks(parameter: torch.Tensor) -> bool:
    """Whether the user registered gradient hooks on a leaf."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)
