"""Attributes of a parallel model's modules which hold values that a captured graph may contain.

Those are tensors, arrays, containers and objects.  The user changes them on the parallel model; captures
read a copy of the model on the meta device, which gets copies of the present values first.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import nn

from autopar.capture.python_state import OPAQUE, PLAIN, is_library
from autopar.capture.read_names import Names, names_from_forward
from autopar.errors import InputError
from autopar.request.derived import derived
from autopar.request.model_state import ABSENT

INTERNAL = frozenset(vars(nn.Module()))
"""Attributes that `nn.Module` sets on every module."""
PARTS = ("_parameters", "_buffers", "_modules")


@dataclass(frozen=True, eq=False)
class _Module:
    """Attributes of one module of the parallel model, and of its copy on the meta device."""

    path: str
    held: dict[str, Any]
    copied: dict[str, Any]
    first: dict[str, Any]
    """The attributes that it had in the beginning."""
    registered: frozenset[str]
    """Names of parameters, buffers and modules, and of tensors that hooks compute from them."""

    kind: type

    def is_own(self, key: str) -> bool:
        """Whether a key is an attribute of the user's, in which autopar and torch keep nothing."""
        return key not in INTERNAL and key not in self.registered

    def holds(self, key: str) -> bool:
        """Whether an attribute is or was more than numbers or a function."""
        return _is_holder(self.held.get(key)) or _is_holder(self.first.get(key))

    def place(self, key: str) -> str:
        """Return the name of an attribute for users."""
        return f"{self.path}.{key}".lstrip(".")


class HeldValues:
    """The attributes of all modules of a tree that code reads by name.

    - `tree`: the parallel model's modules; `model`: the user's model that it was made of; `bare`: the
      copy on the meta device.
    - `compared`: ids of containers whose plain items are compared elsewhere.
    """

    def __init__(
        self, tree: nn.Module, model: nn.Module, bare: nn.Module, compared: Container[int]
    ) -> None:
        self.compared = compared
        trees = zip(tree.named_modules(), model.modules(), bare.modules(), strict=True)
        self._modules = []
        self._trees: list[tuple[nn.Module, weakref.ref[nn.Module], nn.Module]] = []
        """Each module of the three; users may drop their model.  No tensors: torch does not swap those
        that have weak references."""
        self.known: dict[int, Any] = {}
        """Modules and registered tensors, of which nothing is read, by id."""
        for (path, mine), users, copied in trees:
            parts = (vars(users)[part] for part in PARTS)
            names = frozenset(derived(users)).union(*parts)
            self._modules.append(
                _Module(path, vars(mine), vars(copied), dict(vars(mine)), names, type(users))
            )
            self._trees.append((mine, weakref.ref(users), copied))
            tensors = (*vars(mine)["_parameters"].values(), *vars(mine)["_buffers"].values())
            found = (value for value in (mine, copied, *tensors) if value is not None)
            self.known |= {id(value): value for value in found}
        self._of_kinds = {
            kind: names_from_forward(kind) for kind in {m.kind for m in self._modules}
        }
        self._of_libraries = Names()
        for kind, of_kind in self._of_kinds.items():
            if is_library(kind.__module__) and not kind.__module__.startswith("torch."):
                self._of_libraries |= of_kind
        self._names = Names()
        self._visited: list[tuple[_Module, str]] = []
        self._others: list[tuple[dict[str, Any], str, Any, _Module]] = []
        """Numbers, functions, and objects that are visited under another name, with their values."""
        self._counts = [(m.held, len(m.held), m) for m in self._modules]

    def watch(self, names: Names) -> None:
        """Set the names that code outside of libraries reads."""
        self._names = names
        self._visited, self._others = [], []
        seen: set[int] = set()
        for module in self._modules:
            for key, value in module.held.items():
                if not self._reads(module, key):
                    continue
                is_new = _is_holder(value) and id(value) not in seen
                seen.add(id(value))
                if is_new:
                    self._visited.append((module, key))
                else:
                    self._others.append((module.held, key, value, module))

    def _reads(self, module: _Module, key: str) -> bool:
        """Whether code may read an attribute; that of torch reads those of its own modules only."""
        names = (self._names, self._of_libraries, self._of_kinds[module.kind])
        return module.is_own(key) and (self._names.reads_all or any(key in each for each in names))

    def values(self) -> Iterator[tuple[str, Any]]:
        """Yield every place that a graph may depend on, with its value."""
        for module, key in self._visited:
            yield module.place(key), module.held.get(key)
        for held, key, before, module in self._others:
            if held.get(key) is not before and module.holds(key):
                yield module.place(key), held.get(key)
        for held, count, module in self._counts:
            if len(held) != count:
                for key in held.keys() - module.first.keys():
                    if self._reads(module, key) and module.holds(key):
                        yield module.place(key), held[key]

    @contextmanager
    def put_on(self, tensors: Iterable[torch.Tensor]) -> Iterator[None]:
        """Within the context, the bare model has copies of the present values.

        `tensors`: those in the values.  Raise `InputError` for a value that cannot be copied.
        """
        memo = self._memo(tensors)
        undo = []
        try:
            for module in self._modules:
                for key in module.held.keys() | module.first.keys():
                    if self._reads(module, key) and module.holds(key):
                        now = module.held.get(key, ABSENT)
                        made = ABSENT if now is ABSENT else _copied(module.place(key), now, memo)
                        undo.append((module.copied, key, module.copied.get(key, ABSENT)))
                        _set(module.copied, key, made)
            yield
        finally:
            for held, key, value in reversed(undo):
                _set(held, key, value)

    def _memo(self, tensors: Iterable[torch.Tensor]) -> dict[int, Any]:
        """Return what stands for the parallel model's and the user's modules and tensors in a copy."""
        memo: dict[int, Any] = {}
        for mine, users, copied in self._trees:
            for module in (mine, users()):
                if module is not None:
                    memo |= {id(value): twin for value, twin in _pairs(module, copied)}
        results = (t for t in tensors if t.requires_grad and not t.is_leaf)
        for result in results:  # which cannot be copied with their history
            memo.setdefault(id(result), result.detach().clone())
        return memo


def _is_holder(value: Any) -> bool:
    if type(value) in weakref.ProxyTypes:
        return True
    if isinstance(value, tuple):
        return any(map(_is_holder, value))
    return not isinstance(value, (*PLAIN, *OPAQUE, FunctionType, BuiltinFunctionType, nn.Module))


def _pairs(module: nn.Module, copied: nn.Module) -> Iterator[tuple[Any, Any]]:
    """Yield (value, its copy on the meta device) for a module and what it has registered."""
    yield module, copied
    group = vars(module).get("process_group")
    if group is not None:
        yield group, group
    for part in PARTS[:2]:
        for key, twin in vars(copied)[part].items():
            value = vars(module)[part].get(key, vars(module).get(key))
            if value is not None:
                yield value, twin


def _set(held: dict[str, Any], key: str, value: Any) -> None:
    if value is ABSENT:
        held.pop(key, None)
    else:
        held[key] = value


def _copied(place: str, value: Any, memo: dict[int, Any]) -> Any:
    try:
        return copy.deepcopy(value, memo)
    except Exception as error:
        raise InputError(
            f"{place} cannot be copied ({error}), so the model cannot be captured again with the values "
            "that were changed after autopar.parallelize. Keep such an object outside of the "
            "model, or register the tensors that change as buffers."
        ) from error


__all__ = ["HeldValues"]
