"""Extra state of modules in a state dict: their `get_extra_state` and `set_extra_state`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from autopar.errors import InputError

KEY = "_extra_state"
"""Torch's key for it, after the module's name."""


def extra_states(root: nn.Module) -> dict[str, Any]:
    """Return the extra states of all modules by their keys in a state dict."""
    return {name: module.get_extra_state() for name, module in _having(root, "get_extra_state")}


def check_extra_states(root: nn.Module, state: Mapping[str, Any]) -> None:
    """Raise `InputError`, before anything is changed, if the state dict lacks an extra state."""
    missing = [name for name, _ in _having(root, "set_extra_state") if name not in state]
    if missing:
        raise InputError(
            f"The state dict lacks {missing[0]!r}, which the module's set_extra_state needs. Add "
            "it, or pass strict=False."
        )


def set_extra_states(root: nn.Module, state: Mapping[str, Any]) -> None:
    """Set the extra states that the state dict has."""
    for name, module in _having(root, "set_extra_state"):
        if name in state:
            module.set_extra_state(state[name])


def without_extra_states(root: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state dict's parameters and buffers."""
    extra = {name for name, _ in _having(root, "set_extra_state")}
    return {name: value for name, value in state.items() if name not in extra}


def has_extra_state(module: nn.Module) -> bool:
    """Whether the module's class overrides `get_extra_state`."""
    return type(module).get_extra_state is not nn.Module.get_extra_state


def _having(root: nn.Module, method: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules whose class overrides `method`, with the key of their state."""
    for path, module in root.named_modules(remove_duplicate=False):
        if getattr(type(module), method) is not getattr(nn.Module, method):
            yield f"{path}.{KEY}" if path else KEY, module
