"""Tracks values that forward and the loss read outside of the model: globals, closures, other objects.

A captured graph contains these values, so they are compared before every call. Of an object, only
the attributes that reachable code names are compared. Modules of the model are not inspected.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from autopar.capture.constants import LARGEST
from autopar.capture.python_state import OPAQUE, PLAIN, is_library
from autopar.request.model_state import Outside

MOST = 1_000
"""Maximum number of items of a container that is inspected."""
LARGEST_ARRAY = 1 << 16
"""Maximum size in bytes of a NumPy array whose values are compared."""
PARTS = ("_modules", "_parameters", "_buffers")
NO_STATE = frozenset({*PARTS, "_non_persistent_buffers_set"})
ALL = frozenset({"__dict__", "vars", "asdict", "astuple", "attrgetter", "__getstate__", "fields"})
"""Names by which code reads attributes that it does not name."""
CALLED = ("forward", "__call__")
CACHED = 10_000
"""Maximum number of tensors whose values are cached."""


class OutsideValues:
    """The outside values of one model and its loss; `differences` compares with construction time."""

    def __init__(self, model: nn.Module, loss: Callable[..., Any] | None) -> None:
        self._loss = loss
        self._modules = {id(module): module for module in model.modules()}
        kinds = dict.fromkeys(type(module) for module in model.modules())
        self._kinds = [
            kind for kind in kinds if not all(is_library(base.__module__) for base in kind.__mro__)
        ]
        self._functions = [
            (f"{path}.{key}".lstrip("."), value)
            for path, module in model.named_modules()
            for key, value in vars(module).items()
            if isinstance(value, FunctionType | partial)
        ]
        self._tensors: dict[tuple[int, int], Any] = {}
        self._names: frozenset[str] = frozenset()
        first = self._walk()
        while not first.names <= self._names:
            self._names |= first.names
            first = self._walk()
        self._before = first.values
        self._kept = first  # keeps objects alive, so that no id in the values is reused

    def differences(self) -> Outside:
        """Return the paths whose values have changed, with their present values."""
        now = self._walk().values
        if now == self._before:
            return ()
        places = dict.fromkeys((*self._before, *now))
        return tuple((p, now.get(p)) for p in places if self._before.get(p) != now.get(p))

    def _walk(self) -> _Walk:
        if len(self._tensors) > CACHED:
            self._tensors.clear()
        walk = _Walk(self._names, self._tensors, self._modules)
        for kind in (*self._kinds, type(self._loss)):
            walk.kind(kind, CALLED)
        for path, value in (*self._functions, ("the loss", self._loss)):
            walk.value(path, value)
        return walk


class _Walk:
    """A traversal: values by path, and the names in all code that was reached."""

    def __init__(
        self,
        allowed: frozenset[str],
        tensors: dict[tuple[int, int], Any],
        modules: Mapping[int, nn.Module],
    ) -> None:
        self.values: dict[str, Any] = {}
        self.names: set[str] = set()
        self._allowed, self._tensors = allowed, tensors
        self._seen: dict[int, Any] = {**modules}

    def _new(self, value: Any) -> bool:
        if id(value) in self._seen:
            return False
        self._seen[id(value)] = value
        return True

    def kind(self, kind: type, called: tuple[str, ...] = ()) -> None:
        """Visit the functions of a class that reachable code can call, and its attributes."""
        for base in kind.__mro__:
            if not is_library(base.__module__) and self._new(base):
                for key, value in list(vars(base).items()):
                    self._member(base, key, value, called)

    def _member(self, kind: type, key: str, value: Any, called: tuple[str, ...]) -> None:
        is_dunder = key.startswith("__") and key.endswith("__")
        if key not in self._allowed and key not in called and (not is_dunder or key == "__init__"):
            return
        if isinstance(value, property):
            value = value.fget
        function = getattr(value, "__func__", getattr(value, "func", value))
        if isinstance(function, FunctionType):
            self._function(function)
        elif not is_dunder and not isinstance(value, OPAQUE):
            self.value(f"{kind.__qualname__}.{key}", value)

    def _function(self, function: FunctionType) -> None:
        """Visit the globals, closures and defaults of a function."""
        if is_library(function.__module__ or "") or not self._new(function):
            return
        code, name = function.__code__, function.__qualname__
        found = _names_of(code)
        self.names |= found
        for free, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                self.value(f"{free} of {name}", cell.cell_contents)
            except ValueError:  # cell not filled yet
                continue
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        for place, value in enumerate(defaults):
            self.value(f"default {place} of {name}", value)
        scope = function.__globals__
        for used in sorted(found & scope.keys()):
            self.value(f"{function.__module__}.{used}", scope[used])

    def value(self, path: str, value: Any) -> None:
        """Visit a value and everything in it."""
        if isinstance(value, PLAIN):
            self.values[path] = type(value).__name__, repr(value)
        elif isinstance(value, torch.Tensor):
            self.values[path] = self._tensor(value)
        elif isinstance(value, type):
            self.values[path] = id(value)
            if value.__module__ not in sys.stdlib_module_names:
                self.kind(value)
        elif isinstance(value, MethodType):
            self.value(path, value.__self__)
            self.value(f"{path}()", value.__func__)
        elif isinstance(value, FunctionType):
            self.values[path] = id(value)
            self._function(value)
            self.value(f"what {path} wraps", getattr(value, "__wrapped__", None))
        elif isinstance(value, OPAQUE) or not self._new(value) or _is_ours(value):
            self.values[path] = id(value)
        else:
            self.values[path] = type(value).__qualname__
            self.kind(type(value))
            for key, item in self._items(path, value):
                self.value(f"{path}{key}", item)

    def _items(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Yield what a container or an object holds."""
        if isinstance(value, dict | list | tuple | deque | set | frozenset) and len(value) > MOST:
            self.values[path] = len(value), id(value)
        elif isinstance(value, dict):
            yield from ((f"[{key!r}]", item) for key, item in list(value.items()))
        elif isinstance(value, list | tuple | deque):
            yield from ((f"[{place}]", item) for place, item in enumerate(list(value)))
        elif isinstance(value, set | frozenset):
            self.values[path] = repr(sorted(map(repr, value)))
        elif isinstance(value, partial):
            yield from ((".func", value.func), (".args", value.args), ("", value.keywords))
        elif _is_array(value):
            is_small = value.nbytes <= LARGEST_ARRAY and value.dtype != object
            self.values[path] = (value.shape, value.tobytes()) if is_small else id(value)
        else:
            yield from self._attributes(value)

    def _attributes(self, value: Any) -> Iterator[tuple[str, Any]]:
        is_module = isinstance(value, nn.Module)
        if is_library(type(value).__module__) and not is_module:
            return
        held = getattr(value, "__dict__", None)
        if is_module:
            for part in PARTS:
                yield from ((f".{key}", item) for key, item in list(vars(value)[part].items()))
        every = self._reads_all(type(value))
        for key, item in list(held.items()) if isinstance(held, dict) else []:
            if key not in NO_STATE and (every or key in self._allowed or key == "training"):
                yield f".{key}", item
        for key in _slots(type(value)):
            if (every or key in self._allowed) and hasattr(value, key):
                yield f".{key}", getattr(value, key)

    def _reads_all(self, kind: type) -> bool:
        """Return whether attributes may be read that the user's code does not name."""
        bases = [base for base in kind.__mro__ if base not in (object, nn.Module)]
        return bool(self._allowed & ALL) or any(is_library(base.__module__) for base in bases)

    def _tensor(self, value: torch.Tensor) -> Any:
        """Return a tensor's values if a graph would hold them, otherwise its id."""
        looks = tuple(value.shape), str(value.dtype)
        is_plain = type(value) in (torch.Tensor, nn.Parameter) and not value.is_meta
        if not is_plain or value.numel() > LARGEST or value.layout is not torch.strided:
            return (*looks, id(value))
        place = id(value), -1 if value.is_inference() else value._version
        self._seen[id(value)] = value
        if place not in self._tensors or place[1] < 0:
            self._tensors[place] = (value, repr(value.detach().tolist()))
        return (*looks, self._tensors[place][1])


def _names_of(code: CodeType) -> set[str]:
    """Return the names in code and its inner functions, and its strings, which `getattr` may use."""
    found = {*code.co_names, *(const for const in code.co_consts if isinstance(const, str))}
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return found.union(*map(_names_of, inner))


def _is_array(value: Any) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _is_ours(value: Any) -> bool:
    """Return whether a value is a parallel model or a part of one: its weights change in every step."""
    return any(kind.__module__.startswith("autopar.") for kind in type(value).__mro__)


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        names: Mapping[str, Any] | str | tuple[str, ...] = vars(base).get("__slots__", ())
        yield from [names] if isinstance(names, str) else names


__all__ = ["OutsideValues"]
