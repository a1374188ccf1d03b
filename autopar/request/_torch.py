"""The only file of `request` that uses names torch calls private."""

from __future__ import annotations

from collections import OrderedDict
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


def without_hooks(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the attributes that torch's `Optimizer` sets, with empty tables of hooks."""
    made = {key: value for key, value in vars(optimizer).items() if key in OF_TORCH}
    return made | {key: OrderedDict() for key in made if key.endswith("_hooks")}


OF_TORCH = {
    *vars(torch.optim.SGD([torch.nn.Parameter(torch.empty(0))], lr=0.1)),
    "_opt_called", "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks",
}  # fmt: skip
"""Names of the attributes of torch's `Optimizer`; schedulers add the mark `_opt_called`."""
