"""Reads the values that code can reach besides parameters, buffers and inputs, by their paths."""

from __future__ import annotations

import hashlib
import sys
import weakref
from collections import deque
from collections.abc import Container, Iterator, Mapping
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from autopar.capture import containers
from autopar.capture.constants import LARGEST
from autopar.capture.large_containers import LargeContainers
from autopar.capture.libraries import Libraries, is_installed
from autopar.capture.python_state import OPAQUE, PLAIN
from autopar.capture.read_names import Names, names_in
from autopar.capture.watched_reads import MISSING, WatchedReads

MOST = 1_000
"""Maximum number of items of a container that is inspected item by item."""
MOST_VALUES = 20_000
"""Maximum number of values that are inspected; of further ones the identity is compared."""
DEPTH = 60
"""Maximum depth to which values are inspected, likewise."""
LARGEST_ARRAY = 1 << 16
"""Maximum size in bytes of a NumPy array whose values are compared."""
PARTS = ("_modules", "_parameters", "_buffers")
NO_STATE = frozenset({*PARTS, "_non_persistent_buffers_set"})
CACHED = 10_000
"""Maximum number of tensors whose values are cached."""
UNNAMED = ("collections", "types")
"""Modules of libraries whose classes keep the user's values under names of their own."""


class Same:
    """Equal for one object only, which it keeps alive, so that its id is not used again."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


class Memory:
    """What walks over one model keep from one to the next."""

    def __init__(self) -> None:
        self.large = LargeContainers()
        self.tensors: dict[tuple[int, int], Any] = {}
        """Tensors and their values, by id and version."""

    def trim(self) -> None:
        """Forget containers that are gone, and values of tensors if there are many."""
        self.large.drop_unused()
        if len(self.tensors) > CACHED:
            self.tensors.clear()


class Walk:
    """A traversal: values by path, and the names in all code that was reached.

    Of `known` modules and tensors nothing is read: parameters, buffers and modules of the model, nor of
    the code of `libraries`.  Plain items of the containers in `compared`, ids, are left to
    `autopar.runtime.attributes`.
    """

    def __init__(
        self,
        allowed: Names,
        memory: Memory,
        known: Mapping[int, Any],
        libraries: Libraries,
        compared: Container[int] = (),
    ) -> None:
        self.values: dict[str, Any] = {}
        self.reads = WatchedReads()
        self._names: list[Names] = []
        self._allowed, self._memory = allowed, memory
        self._known, self._compared, self._libraries = known, compared, libraries
        self._seen: dict[int, Any] = {}
        self._titles: dict[str, int] = {}
        self._depth = 0

    @property
    def names(self) -> Names:
        """The names in all code that was reached."""
        return Names.union(self._names)

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors that were visited."""
        return [value for value in self._seen.values() if isinstance(value, torch.Tensor)]

    def _new(self, value: Any) -> bool:
        if id(value) in self._seen or self._known.get(id(value)) is value:
            return False
        self._seen[id(value)] = value
        return True

    def kind(self, kind: type, called: tuple[str, ...] = ()) -> None:
        """Visit the functions of a class that reachable code can call, and its attributes."""
        for base in kind.__mro__:
            if base.__module__ not in self._libraries and self._new(base):
                title = self._title(base.__qualname__)
                members = {k: v for k, v in list(vars(base).items()) if self._may_read(k, called)}
                self.reads.space(vars(base), members)
                self.reads.attributes(base, "__bases__")
                for key, value in members.items():
                    self._member(title, key, value)

    def _title(self, name: str) -> str:
        """Return a name that no other class or function of this walk has."""
        count = self._titles[name] = self._titles.get(name, 0) + 1
        return name if count == 1 else f"{name} {count}"

    def _may_read(self, key: str, called: tuple[str, ...]) -> bool:
        """Return whether code may read a member of a class, or call it."""
        return (key != "__init__" and _is_dunder(key)) or key in self._allowed or key in called

    def _member(self, title: str, key: str, value: Any) -> None:
        if isinstance(value, property):
            value = value.fget
        function = getattr(value, "__func__", getattr(value, "func", value))
        if isinstance(function, FunctionType):
            self.values[f"{title}.{key}"] = Same(function)
            self._function(function)
        elif not _is_dunder(key) and not isinstance(value, OPAQUE):
            self.value(f"{title}.{key}", value)

    def _function(self, function: FunctionType) -> None:
        """Visit the globals, closures and defaults of a function."""
        if (function.__module__ or "") in self._libraries or not self._new(function):
            return
        code, name = function.__code__, function.__qualname__
        found = names_in(code)
        self._names.append(found)
        self.values[self._title(f"code of {function.__module__}.{name}")] = Same(code)
        for free, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if _is_filled(cell):
                self.reads.attributes(cell, "cell_contents")
                self.value(f"{free} of {name}", cell.cell_contents)
            else:
                self.reads.result(partial(_is_filled, cell), False)
        self.reads.attributes(function, "__code__", "__defaults__", "__kwdefaults__")
        keywords = function.__kwdefaults__ or {}
        if keywords:
            self.reads.space(keywords, keywords)
        for place, value in enumerate((*(function.__defaults__ or ()), *keywords.values())):
            self.value(f"default {place} of {name}", value)
        scope = function.__globals__
        used = sorted(found.names & scope.keys())
        self.reads.space(scope, used)
        for key in used:
            self.value(f"{function.__module__}.{key}", scope[key])

    def value(self, path: str, value: Any) -> None:
        """Visit a value and everything in it."""
        if type(value) in weakref.ProxyTypes:
            self.values[path] = Same(value)
        elif _is_plain(value):
            self.values[path] = type(value).__name__, repr(value)
        elif isinstance(value, torch.Tensor):
            if self._known.get(id(value)) is not value:
                self.values[path] = self._tensor(value)
        elif isinstance(value, type):
            self.values[path] = Same(value)
            if value.__module__ not in sys.stdlib_module_names:
                self.kind(value)
        elif isinstance(value, MethodType):
            self.value(path, value.__self__)
            self.value(f"{path}()", value.__func__)
        elif isinstance(value, FunctionType):
            self.values[path] = Same(value)
            self._function(value)
            self.value(f"what {path} wraps", getattr(value, "__wrapped__", None))
        elif isinstance(value, ModuleType):
            self._module(path, value)
        elif (
            isinstance(value, OPAQUE) or _is_ours(value) or self._is_full() or not self._new(value)
        ):
            self.values[path] = Same(value)
        else:
            self.values[path] = type(value).__qualname__
            self.kind(type(value))
            self._depth += 1
            for key, item in self._items(path, value):
                self.value(f"{path}{key}", item)
            self._depth -= 1

    def _is_full(self) -> bool:
        return self._depth >= DEPTH or len(self.values) >= MOST_VALUES

    def _module(self, path: str, value: ModuleType) -> None:
        """Visit the variables of a user's Python module that code names: ``settings.SCALE``."""
        self.values[path], name = Same(value), value.__name__
        if not (name in self._libraries or is_installed(name)) and self._new(value):
            held = vars(value)
            read = [key for key in list(held) if key in self._allowed and not key.startswith("__")]
            self.reads.space(held, read)
            for key in read:
                self.value(f"{path}.{key}", held[key])

    def _items(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Yield what a container or an object holds."""
        kind = containers.kind_of(value)
        is_large = kind is not None and containers.length(value) > MOST
        if kind is not None and not is_large:
            self.reads.contents(value)
        if is_large:
            contents = self._memory.large.contents(value)
            self.reads.result(partial(self._memory.large.contents, value), contents)
            self.values[path] = containers.length(value), Same(value), contents
        elif containers.is_mapping(value):
            items = [(_key(key), item) for key, item in containers.items(value)]
            yield from self._but_compared(value, items)
        elif kind in (list, tuple, deque):
            held = containers.members(value)
            is_compared = id(value) in self._compared and all(map(_is_plain, held))
            yield from () if is_compared else [(f"[{i}]", item) for i, item in enumerate(held)]
        elif kind in (set, frozenset):
            held = containers.members(value)
            self.values[path] = (
                ("set", repr(sorted(map(repr, held))))
                if all(map(_is_plain, held))
                else frozenset(map(_token, held))
            )
        elif isinstance(value, partial):
            yield from ((".func", value.func), (".args", value.args), ("", value.keywords))
        elif isinstance(value, weakref.ref):
            self.reads.is_complete = False
            yield "()", value()
        elif _is_array(value):
            self.values[path] = looks = _array(value)
            self.reads.result(partial(_array, value), looks)
        else:
            yield from self._attributes(value)

    def _but_compared(self, held: Any, items: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """Return the items without the plain ones of a container that is compared elsewhere."""
        if id(held) not in self._compared:
            return items
        return [(key, item) for key, item in items if not _is_plain(item)]

    def _attributes(self, value: Any) -> Iterator[tuple[str, Any]]:
        is_module, home = isinstance(value, nn.Module), type(value).__module__
        if home.startswith("torch") and home in self._libraries and not is_module:
            return
        held = getattr(value, "__dict__", None)
        self.reads.attributes(value, "__class__")
        if is_module:
            for part in PARTS:
                registered = dict(vars(value)[part])
                self.reads.space(vars(value)[part], registered)
                yield from ((f".{key}", item) for key, item in registered.items())
        every = self._reads_all(type(value))
        if isinstance(held, dict):
            named = {
                key: item
                for key, item in list(held.items())
                if key not in NO_STATE and (every or key in self._allowed or key == "training")
            }
            self.reads.space(held, [*named, *(PARTS if is_module else ())])
            self.reads.attributes(value, "__dict__")
            items = [(f".{key}", item) for key, item in named.items()]
            yield from self._but_compared(held, items)
        for key in _slots(type(value)):
            if every or key in self._allowed:
                item = getattr(value, key, MISSING)
                if item is MISSING:
                    self.reads.result(partial(hasattr, value, key), False)
                else:
                    self.reads.attributes(value, key)
                    yield f".{key}", item

    def _reads_all(self, kind: type) -> bool:
        """Return whether attributes may be read that the user's code does not name."""
        if self._allowed.reads_all or kind.__module__ in UNNAMED:
            return True
        bases = [base for base in kind.__mro__ if base not in (object, nn.Module)]
        of_library = [base.__module__ in self._libraries for base in bases]
        return any(of_library) and not all(of_library)

    def _tensor(self, value: torch.Tensor) -> Any:
        """Return a tensor's values if they are known and a graph can hold so many."""
        looks = tuple(value.shape), str(value.dtype)
        self._seen[id(value)] = value
        if value.numel() > LARGEST:  # capture refuses code that reads it
            self.reads.shape(value)
            return looks
        is_plain = type(value) in (torch.Tensor, nn.Parameter) and not value.is_meta
        if not is_plain or value.layout is not torch.strided:
            self.reads.shape(value)
            return (*looks, Same(value))
        self.reads.tensor(value)
        known = self._memory.tensors
        place = id(value), -1 if value.is_inference() else value._version
        if place not in known or place[1] < 0:
            known[place] = (value, repr(value.detach().tolist()))
        return (*looks, known[place][1])


def _is_plain(value: Any) -> bool:
    """Return whether a value has a text; `isinstance` raises for a proxy whose object is gone."""
    return type(value) not in weakref.ProxyTypes and isinstance(value, PLAIN)


def _key(key: Any) -> str:
    return (
        f"[{key!r}]" if isinstance(key, (*PLAIN, tuple)) else f"[{type(key).__name__} {id(key):x}]"
    )


def _token(value: Any) -> Any:
    return (type(value).__name__, repr(value)) if _is_plain(value) else Same(value)


def _is_array(value: Any) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _is_ours(value: Any) -> bool:
    """Return whether a value is a parallel model or a part of one: its weights change in every step."""
    return any(kind.__module__.startswith("autopar.") for kind in type(value).__mro__)


def _array(value: Any) -> tuple[Any, ...]:
    """Return the values of a small array as a digest."""
    is_small = value.nbytes <= LARGEST_ARRAY and value.dtype != object
    digest = hashlib.sha256(value.tobytes()).hexdigest() if is_small else Same(value)
    return value.shape, str(value.dtype), digest


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _is_dunder(key: str) -> bool:
    return key.startswith("__") and key.endswith("__")


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        names: Mapping[str, Any] | str | tuple[str, ...] = vars(base).get("__slots__", ())
        yield from [names] if isinstance(names, str) else names


__all__ = ["Memory", "Same", "Walk"]
