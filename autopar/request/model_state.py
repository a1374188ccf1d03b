"""How the user's model stands when it is called: what a captured graph depends on besides the batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Change:
    """One plain attribute that is not as it was: of the module at `path`, reached by `steps`.

    A step is the name of an attribute, or a key or an index inside what was reached so far.
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
        """Set it; give what was changed where, and the value before (`ABSENT` if there was none)."""
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
    """A program serves calls in one such state.

    - `gradients`: whether the call's tensors carry gradients.
    - `modes`: ``training`` of every module, in the order of ``named_modules()``.
    - `changes`: plain attributes that were set since the model was captured first.
    - `default_dtype`: what ``torch.get_default_dtype()`` gives.
    """

    gradients: bool = True
    modes: tuple[bool, ...] = ()
    changes: tuple[Change, ...] = ()
    default_dtype: torch.dtype = torch.float32

    @property
    def training(self) -> bool:
        """The mode of the model itself."""
        return not self.modes or self.modes[0]

    @contextmanager
    def put_on(self, model: nn.Module) -> Iterator[None]:
        """Within, the model stands so."""
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
    """Stands for an attribute that there is not."""

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
