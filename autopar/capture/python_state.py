"""Records Python state besides tensors before and after a trace, compares it, and restores it.

A forward pass that changes an attribute, a list, a counter of a helper object, or the state of a
random generator computes something else in the next step. One graph cannot represent that.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import torch
from torch import nn

from autopar.capture import _torch, containers

MOST = 200_000
"""Maximum number of values that are inspected."""
LARGEST_ARRAY = 1 << 26
"""Maximum size in bytes of an array that is compared."""
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
OPAQUE = (type, ModuleType, BuiltinFunctionType, CodeType, property)
"""Types that are not inspected; classes are, if the user's code names them."""
OWN_STATE = frozenset(
    ["_parameters", "_buffers", "_modules", "training", "_non_persistent_buffers_set"]
)
"""State of an `nn.Module` that capture tracks in another way, except for which entries exist."""
PARTS = ("_modules", "_parameters", "_buffers")
PYTHON, NUMPY = "the random numbers of Python", "the random numbers of NumPy"
LIBRARIES = ("torch.", "transformers.", "numpy.", "autopar.", "logging", "warnings")
Path = str
Token = Any


@dataclass
class PythonState:
    """Values by path, and functions that restore each container."""

    values: dict[Path, Token] = field(default_factory=dict)
    tensors: dict[int, Path] = field(default_factory=dict)
    """Path of each tensor that is no parameter or buffer of the model, by id."""
    undo: list[Callable[[], None]] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    """Names that the user's code uses."""
    generators: dict[Path, bool] = field(default_factory=dict)
    """For each object with a state of its own: whether it generates random numbers."""
    traced: list[tuple[Any, Any, torch.Tensor]] = field(default_factory=list)
    """Dict, key and value of each traced tensor that was stored in a dict."""
    scopes: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Globals of the user's functions, by id."""
    roots: dict[Path, Callable[[], Any]] = field(default_factory=dict)
    """For each path, a function that returns the attribute or variable at the beginning of the path."""
    _root: Callable[[], Any] = lambda: None
    _seen: dict[int, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, others: Mapping[Path, Any]) -> PythonState:
        """Return the state of the model's modules, of their classes' functions, and of `others`."""
        found = cls()
        for path, module in model.named_modules():
            found._module(path, module)
        for path in others:
            found._from(path, partial(others.get, path))
        kinds = {kind for module in model.modules() for kind in type(module).__mro__}
        for kind in sorted(kinds, key=lambda kind: kind.__qualname__):
            if not is_library(kind.__module__):
                found._class(kind)
        return found

    def differs(self, other: PythonState) -> list[Path]:
        """Return the paths whose values differ, in order."""
        places = dict.fromkeys((*self.values, *other.values))
        return [p for p in places if self.values.get(p) != other.values.get(p)]

    @classmethod
    def below(cls, path: Path, value: Any) -> dict[Path, Token]:
        """Return the tokens of a value and of everything in it."""
        found = cls()
        found._walk(path, value)
        return found.values

    def put_back(self) -> None:
        """Restore every container to what it was when it was inspected."""
        for undo in reversed(self.undo):
            undo()

    def _new(self, value: Any) -> bool:
        """Return whether a value is seen for the first time and the limit is not reached."""
        if id(value) in self._seen or len(self.values) >= MOST:
            return False
        self._seen[id(value)] = value  # keeps the object alive, so that its id is not reused
        return True

    def _module(self, path: Path, module: nn.Module) -> None:
        if not self._new(module):
            return
        held = vars(module)
        mine = {key: value for key, value in held.items() if key not in OWN_STATE}
        self.undo.append(lambda: _as_before(held, mine, OWN_STATE))
        for part in PARTS:
            self._part(path, module, part)
        for key in mine:
            self._from(f"{path}.{key}".lstrip("."), partial(held.get, key))

    def _part(self, path: Path, module: nn.Module, name: str) -> None:
        """Record which modules and parameters a module has; capture tracks their values."""
        held, part = vars(module), vars(module)[name]
        before = dict(containers.items(part))

        def undo() -> None:
            held[name] = part
            containers.restore_items(part, before)

        self.undo.append(undo)
        for key, value in before.items():
            if isinstance(value, nn.Module | nn.Parameter):
                place = f"{path}.{key}".lstrip(".")
                shape = tuple(value.shape) if isinstance(value, nn.Parameter) else ()
                self.values[place] = (type(value).__qualname__, shape)
                self.roots[place] = partial(getattr, module, key, None)

    def _from(self, path: Path, root: Callable[[], Any]) -> None:
        """Inspect the value that `root` returns, and everything in it."""
        outer, self._root = self._root, root
        self._walk(path, root())
        self._root = outer

    def _class(self, kind: type) -> None:
        """Inspect attributes of a user's class, and what its functions reach."""
        for key, value in list(vars(kind).items()):
            value = getattr(value, "__func__", value)
            if isinstance(value, FunctionType):
                self._function(value)
            elif not key.startswith("__") and not isinstance(value, OPAQUE):
                self.undo.append(_attribute(kind, key, value))
                self._from(f"{kind.__qualname__}.{key}", partial(vars(kind).get, key))

    def _function(self, function: FunctionType) -> None:
        """Inspect the globals, closures and defaults of a function."""
        if is_library(function.__module__ or "") or not self._new(function):
            return
        self.names |= names_of(function.__code__)
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            self._cell(f"{name} of {function.__qualname__}", cell)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._walk(f"a default of {function.__qualname__}", value)
        for name in sorted(names_of(function.__code__)):
            if name not in function.__globals__:
                continue
            value = function.__globals__[name]
            if isinstance(value, PLAIN) or not isinstance(value, OPAQUE):
                self.undo.append(_entry(function.__globals__, name, value))
            scope = self.scopes.setdefault(id(function.__globals__), function.__globals__)
            self._from(f"{function.__module__}.{name}", partial(scope.get, name))

    def _cell(self, path: Path, cell: Any) -> None:
        try:
            value = cell.cell_contents
        except ValueError:  # cell not filled yet
            return
        self.undo.append(_attribute(cell, "cell_contents", value))
        self._from(path, lambda: cell.cell_contents)

    def _walk(self, path: Path, value: Any) -> None:
        """Record the token of a value and of everything that it holds."""
        if len(self.values) >= MOST:
            return
        self.roots[path] = self._root
        if isinstance(value, PLAIN):
            self.values[path] = (type(value).__name__, repr(value))
        elif isinstance(value, torch.Tensor):
            self.values[path] = _signature(value)
            if not _torch.is_fake(value):
                self.tensors.setdefault(id(value), path)
                self._seen[id(value)] = value
        elif isinstance(value, type) and not is_library(value.__module__ or ""):
            if self._new(value) and value.__module__ not in sys.stdlib_module_names:
                self._class(value)
        elif isinstance(value, OPAQUE):
            self.values[path] = id(value)
        elif isinstance(value, FunctionType):
            self.values[path] = id(value)
            self._function(value)
        elif isinstance(value, MethodType):
            self._walk(path, value.__self__)
            if isinstance(value.__func__, FunctionType):
                self._function(value.__func__)
        elif not self._new(value):
            self.values[path] = id(value)
        else:
            self._inside(path, value)

    def _inside(self, path: Path, value: Any) -> None:
        state = state_of(value)
        if state is not None:
            token, undo = state
            self.generators[path] = hasattr(value, "random") or isinstance(value, torch.Generator)
            self.values[path] = token
            self.undo.append(undo)
            return
        self.values[path] = type(value).__qualname__
        for key, item in self._items(value):
            self._walk(f"{path}{key}", item)

    def _items(self, value: Any) -> Iterable[tuple[str, Any]]:
        """Return what a container or an object holds, and add functions to `undo` that restore it."""
        if isinstance(value, nn.Module):
            # A module that no other module has registered: its parameters are not the model's.
            mine = vars(value)
            parts = {**mine, **mine["_parameters"], **mine["_buffers"], **mine["_modules"]}
            return [(f".{k}", v) for k, v in parts.items() if k not in OWN_STATE]
        items: list[tuple[str, Any]] = []
        if containers.is_mapping(value):
            before = dict(containers.items(value))
            self.undo.append(lambda: containers.restore_items(value, before))
            self.traced += [(value, key, x) for key, x in before.items() if _torch.is_fake(x)]
            items = [(f"[{key!r}]", item) for key, item in before.items()]
        elif containers.kind_of(value) in (list, deque, tuple, set):
            had = containers.members(value)
            if containers.kind_of(value) is not tuple:
                self.undo.append(lambda: containers.restore_members(value, had))
            items = [(f"[{place}]", item) for place, item in enumerate(had)]
            if containers.kind_of(value) is set:
                items = [("{}", repr(sorted(map(repr, had)) if len(had) <= MOST else len(had)))]
        try:
            attributes = object.__getattribute__(value, "__dict__")  # asks no `__getattr__`
        except AttributeError:
            attributes = None
        if isinstance(attributes, dict) and not is_library(type(value).__module__):
            held = dict(attributes)
            self.undo.append(lambda: containers.restore_items(attributes, held))
            self.traced += [(attributes, key, x) for key, x in held.items() if _torch.is_fake(x)]
            items += [(f".{key}", item) for key, item in held.items()]
        for key, slot in _slots(type(value)):
            try:
                item = slot.__get__(value)
            except AttributeError:  # not filled
                continue
            self.undo.append(partial(slot.__set__, value, item))
            items.append((f".{key}", item))
        return items[:MOST]


def held_by(model: nn.Module, loss: Callable[..., Any] | None) -> PythonState:
    """Return the Python state that a step of the model and its loss could change."""
    others: dict[str, Any] = {PYTHON: random.getstate.__self__}  # type: ignore[attr-defined]
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        others[NUMPY] = numpy.random.get_state.__self__
    return PythonState.of(model, {**others, "loss": loss})


@contextmanager
def undone(model: nn.Module, loss: Callable[..., Any] | None) -> Iterator[None]:
    """Restore the Python state if the context raises: the next trace begins in the same state."""
    before = held_by(model, loss)
    try:
        yield
    except BaseException:
        before.put_back()
        raise


def is_library(module: str) -> bool:
    """Return whether code of this module is not inspected."""
    return f"{module}.".startswith(LIBRARIES) or module.partition(".")[0] in (
        sys.stdlib_module_names - {"__main__"}
    )


def names_of(code: CodeType) -> set[str]:
    """Return the names that code and the functions inside it use."""
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*map(names_of, inner))


def state_of(value: Any) -> tuple[Token, Callable[[], None]] | None:
    """Return the state of a generator, an array or an iterator, and a function that restores it."""
    if isinstance(value, random.Random):
        state = value.getstate()
        return hash(state), lambda: value.setstate(state)
    if isinstance(value, torch.Generator):
        own = value.get_state()

        def reset() -> None:
            value.set_state(own)

        return own.numpy().tobytes(), reset
    if isinstance(value, GeneratorType):
        frame = value.gi_frame
        return (frame and frame.f_lasti, repr(frame and frame.f_locals)[:10_000]), _nothing
    if type(value).__module__ == "itertools":
        return repr(value), _nothing
    kind = type(value)  # an object may answer to any name
    if hasattr(kind, "__length_hint__") and hasattr(kind, "__next__"):
        return kind.__length_hint__(value), _nothing
    return _of_numpy(value)


def _of_numpy(value: Any) -> tuple[Token, Callable[[], None]] | None:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, numpy.ndarray):
        if value.nbytes > LARGEST_ARRAY:
            return (value.shape, str(value.dtype), id(value)), _nothing
        copy = value.copy()

        def fill() -> None:
            if not numpy.array_equal(value, copy):
                value[...] = copy

        return (value.shape, str(value.dtype), hash(copy.tobytes())), fill
    if isinstance(value, numpy.random.Generator):
        bits = value.bit_generator
        before = bits.state
        return hash(repr(before)), lambda: setattr(bits, "state", before)
    if isinstance(value, numpy.random.RandomState):
        kept = value.get_state()
        return repr([str(kept[0]), hash(kept[1].tobytes()), kept[2:]]), lambda: value.set_state(
            kept
        )
    return None


def _nothing() -> None:
    """Do nothing: an iterator cannot be restored."""


def _signature(value: torch.Tensor) -> Token:
    """Return a token of a tensor; for a traced one shape and dtype, since each trace makes another."""
    if _torch.is_fake(value):
        return "traced", tuple(value.shape), str(value.dtype)
    return "tensor", id(value), 0 if value.is_inference() else value._version


def _slots(kind: type) -> list[tuple[str, MemberDescriptorType]]:
    """Return the slots of a user's class: their descriptors run no code of the user."""
    if is_library(kind.__module__):
        return []
    return [
        (name, slot)
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for name, slot in vars(base).items()
        if isinstance(slot, MemberDescriptorType)
    ]


def _as_before(held: dict[str, Any], before: Mapping[str, Any], but: frozenset[str]) -> None:
    """Restore the attributes of a module, but these."""
    now = {key: value for key, value in held.items() if key not in but}
    if now.keys() == before.keys() and all(now[key] is before[key] for key in now):
        return
    for key in now.keys() - before.keys():
        del held[key]
    held.update(before)


def _attribute(owner: Any, key: str, value: Any) -> Callable[[], None]:
    def undo() -> None:
        if getattr(owner, key, None) is not value:
            setattr(owner, key, value)

    return undo


def _entry(held: dict[str, Any], key: str, value: Any) -> Callable[[], None]:
    def undo() -> None:
        if held.get(key) is not value:
            held[key] = value

    return undo
