"""Detects changes of modes and plain attributes of the parallel model's modules.

A captured graph depends on them (``dropout.p``, ``norm.eps``, ``config.use_cache``), so they are part of
the key of a program.  The check of a step is cheap: it compares dicts whose values are nearly always
identical objects.  Tensors and other objects in attributes are compared by `Follows`.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Iterator
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Protocol

import torch
from torch import nn

from autopar.errors import InputError
from autopar.request.model_state import ABSENT, Change, ModelState
from autopar.runtime.closed import BEFORE, Elsewhere
from autopar.runtime.holders import INTERNAL

SIMPLE = (
    bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format,
    enum.Enum, FunctionType, BuiltinFunctionType, type,
)  # fmt: skip
"""Types of values in a program's key; values of other types are compared by identity only."""
DEPTH = 3
"""Depth to which configurations, lists and dicts are searched."""
OURS = frozenset({"forward", "_apply", "to_empty", "__deepcopy__", "__reduce_ex__", "training"})
Step = tuple[str, Any]


@dataclass(frozen=True, eq=False)
class _Place:
    """A module's attributes, or the contents of one of them, with a copy of their initial state."""

    path: str
    module: dict[str, Any]
    """The attributes of the module."""
    steps: tuple[Step, ...]
    held: Any
    before: Any
    """A copy of `held`."""

    def is_same(self) -> bool:
        """Whether no value was replaced; train and eval modes are ignored."""
        if not self.steps:
            self.before["training"] = self.held["training"]
        try:
            return bool(self.held == self.before)
        except (RuntimeError, ValueError):  # tensors or arrays compare element by element
            return False

    def is_current(self) -> bool:
        """Whether the module still holds it there."""
        here: Any = self.module
        try:
            for kind, key in self.steps:
                if kind != "item" and here is not self.module:
                    here = vars(here)
                here = here if kind == "attributes of" else here[key]
        except (KeyError, IndexError, TypeError):
            return False
        return here is self.held

    def changes(self) -> Iterator[tuple[Step, Any, Any]]:
        """Yield (step, value before, value now) for every value that was replaced."""
        kind = "attribute" if self.steps == () or self.steps[-1][0] == "attributes of" else "item"
        before, now = _items(self.before), _items(self.held)
        for key in dict.fromkeys((*before, *now)):
            if not self.steps and key in OURS | INTERNAL:
                continue
            one, other = before.get(key, ABSENT), now.get(key, ABSENT)
            if isinstance(one, Elsewhere):  # a placeholder, which cannot be replaced
                continue
            if one is not other and not _equal(one, other):
                yield (kind, key), one, other

    def as_a_whole(self) -> Iterator[Change]:
        """Yield a changed list as one change, if it holds simple values only."""
        if _is_simple(self.held) and _is_simple(self.before):
            yield Change(self.path, _plain(self.steps), _frozen(self.held))


class Follows(Protocol):
    """Captures graphs, and compares the values that they may contain before every call."""

    def follow(self, tree: nn.Module, model: nn.Module, compared: Container[int]) -> None:
        """Include what attributes of the modules of `tree` hold, which was made of the user's `model`.

        Plain items of the containers with the ids `compared` are left out.
        """


class Attributes:
    """Attributes of all modules of `root`, the tree made by `autopar.runtime.holders`."""

    def __init__(self, root: nn.Module) -> None:
        self._root, self._modules = root, list(root.modules())
        self._places = list(_places(root))
        self._forwards = [(path, m, vars(m)["forward"]) for path, m in root.named_modules()]

    def follow(self, compiler: Follows, model: nn.Module) -> None:
        """Leave tensors and objects in attributes that code reads to the compiler."""
        lists = (place for place in self._places if isinstance(place.held, list))
        mixed = {id(place.held) for place in lists if not _is_simple(place.before)}
        compared = frozenset(id(place.held) for place in self._places) - mixed
        compiler.follow(self._root, model, compared)

    def state(self, gradients: bool) -> ModelState:
        """Return the model's current state; raise `InputError` for a change that is not supported."""
        for path, module, forward in self._forwards:
            if vars(module).get("forward") is not forward:
                raise InputError(
                    f"{path or 'the model'}.forward was replaced after autopar.parallelize, and "
                    f"the step still computes the old one. {BEFORE}"
                )
        return ModelState(
            gradients,
            tuple(module.training for module in self._modules),
            tuple(self._changes()),
            torch.get_default_dtype(),
        )

    def _changes(self) -> Iterator[Change]:
        for place in self._places:
            if place.is_same() or not self._is_current(place):
                continue
            if isinstance(place.held, list):
                yield from place.as_a_whole()
                continue
            for step, before, now in place.changes():
                change = Change(place.path, _plain((*place.steps, step)), _frozen(now))
                if _is_simple(now) and (before is ABSENT or _is_simple(before)):
                    yield change

    def _is_current(self, place: _Place) -> bool:
        """Whether a changed container is still where it was.

        Raise `InputError` if it was replaced there, but another attribute holds it as well.
        """
        if place.is_current():
            return True
        for path, module in self._root.named_modules():
            for key, value in vars(module).items():
                if place.held is value or place.held is getattr(value, "__dict__", None):
                    raise InputError(
                        f"{Change(place.path, _plain(place.steps), None)} was replaced after "
                        f"autopar.parallelize, and what it was has changed as {path}.{key}. "
                        f"Replace it there as well. {BEFORE}"
                    )
        return False


def _places(root: nn.Module) -> Iterator[_Place]:
    seen: set[int] = set()
    for path, module in root.named_modules():
        held = vars(module)
        yield _Place(path, held, (), held, held.copy())
        for key, value in held.items():
            if key not in INTERNAL | OURS:
                yield from _inside(path, held, (("attribute", key),), value, seen, DEPTH)


def _inside(
    path: str,
    module: dict[str, Any],
    steps: tuple[Step, ...],
    value: Any,
    seen: set[int],
    depth: int,
) -> Iterator[_Place]:
    """Yield the places inside a list, a dict or an object with attributes."""
    if (
        id(value) in seen
        or not depth
        or isinstance(value, (*SIMPLE, torch.Tensor, nn.Module, Elsewhere))
    ):
        return
    seen.add(id(value))
    if type(value) in (list, dict):
        yield _Place(path, module, steps, value, value.copy())
        items, kind = _items(value), "item"
    elif hasattr(value, "__dict__") and not callable(value) and not isinstance(value, ModuleType):
        held = vars(value)
        yield _Place(path, module, (*steps, ("attributes of", "")), held, held.copy())
        items, kind = held, "attribute"
    else:
        return
    for key, item in list(items.items()):
        yield from _inside(path, module, (*steps, (kind, key)), item, seen, depth - 1)


def _plain(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    return tuple(step for step in steps if step[0] != "attributes of")


def _items(held: Any) -> dict[Any, Any]:
    made: dict[Any, Any] = dict(enumerate(held)) if isinstance(held, list) else held
    return made


def _equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and _is_simple(one) and bool(one == other)


def _is_simple(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_simple, value))
    return value is ABSENT or isinstance(value, SIMPLE)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, tuple | list) else value
