"""What modules keep in a state dict beside tensors: their `get_extra_state` and `set_extra_state`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from autopar.errors import InputError

KEY = "_extra_state"
"""Torch's name for it, below that of the module."""


def extra_states(root: nn.Module) -> dict[str, Any]:
    """By the names that a state dict has for them."""
    return {name: module.get_extra_state() for name, module in _having(root, "get_extra_state")}


def check_extra_states(root: nn.Module, state: Mapping[str, Any]) -> None:
    """Raise `InputError`, before anything is changed, for what a strict state dict lacks."""
    missing = [name for name, _ in _having(root, "set_extra_state") if name not in state]
    if missing:
        raise InputError(
            f"The state dict lacks {missing[0]!r}, which the module's set_extra_state is to get. "
            "Add it, or pass strict=False."
        )


def set_extra_states(root: nn.Module, state: Mapping[str, Any]) -> None:
    """Give modules what a state dict has for them."""
    for name, module in _having(root, "set_extra_state"):
        if name in state:
            module.set_extra_state(state[name])


def without_extra_states(root: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters and buffers."""
    extra = {name for name, _ in _having(root, "set_extra_state")}
    return {name: value for name, value in state.items() if name not in extra}


def has_extra_state(module: nn.Module) -> bool:
    """Whether its class has a `get_extra_state` of its own."""
    return type(module).get_extra_state is not nn.Module.get_extra_state


def _having(root: nn.Module, method: str) -> Iterator[tuple[str, nn.Module]]:
    """The modules whose class has its own, by the name of the state."""
    for path, module in root.named_modules(remove_duplicate=False):
        if getattr(type(module), method) is not getattr(nn.Module, method):
            yield f"{path}.{KEY}" if path else KEY, module
