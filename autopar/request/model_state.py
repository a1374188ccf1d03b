"""The state of the user's model at a call: what a captured graph depends on besides the batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Change:
    """One plain attribute that has changed: in the module at `path`, reached by `steps`.

    A step is an attribute's name, or a key or index in the object reached so far.
    """

    path: str
    steps: tuple[tuple[str, Any], ...]
    value: Any

    def __str__(self) -> str:
        inside = "".join(
            f".{key}" if kind == "attribute" else f"[{key!r}]" for kind, key in self.steps
        )
        return f"{self.path}{inside}".lstrip(".")

    def put_on(self, model: nn.Module) -> tuple[Any, tuple[str, Any], Any]:
        """Apply the change; return its container, the step and the old value (`ABSENT` if none)."""
        here: Any = model.get_submodule(self.path)
        for step in self.steps[:-1]:
            here = _get(here, step)
        before = _get(here, self.steps[-1])
        _set(here, self.steps[-1], self.value)
        return here, self.steps[-1], before


Outside = tuple[tuple[str, Any], ...]
"""Places outside of the model's modules, and the values there."""


@dataclass(frozen=True)
class ModelState:
    """The state of a model at a call; a program is valid for one such state.

    - `gradients`: whether the call computes gradients.
    - `modes`: ``training`` of every module, in the order of ``named_modules()``.
    - `changes`: plain attributes that were set since the first capture.
    - `default_dtype`: the value of ``torch.get_default_dtype()``.
    """

    gradients: bool = True
    modes: tuple[bool, ...] = ()
    changes: tuple[Change, ...] = ()
    default_dtype: torch.dtype = torch.float32

    @property
    def training(self) -> bool:
        """Whether the root module is in training mode."""
        return not self.modes or self.modes[0]

    @contextmanager
    def put_on(self, model: nn.Module) -> Iterator[None]:
        """Put the model into this state within the context, and restore it afterwards."""
        modules = list(model.modules()) if self.modes else []
        before = [module.training for module in modules]
        undo = []
        try:
            for module, training in zip(modules, self.modes, strict=True):
                module.training = training
            for change in self.changes:
                undo.append(change.put_on(model))
            yield
        finally:
            for here, step, value in reversed(undo):
                _set(here, step, value)
            for module, training in zip(modules, before, strict=True):
                module.training = training


class _Absent:
    """Sentinel for a missing attribute."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()


def _get(here: Any, step: tuple[str, Any]) -> Any:
    kind, key = step
    if kind == "attribute":
        return vars(here).get(key, ABSENT)
    return here.get(key, ABSENT) if isinstance(here, dict) else here[key]


def _set(here: Any, step: tuple[str, Any], value: Any) -> None:
    kind, key = step
    held = vars(here) if kind == "attribute" else here
    if value is ABSENT:
        held.pop(key, None)
    elif isinstance(value, tuple) and isinstance(_get(here, step), list):
        held[key] = list(value)
    else:
        held[key] = value
