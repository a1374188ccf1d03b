"""Tracks values that forward and the loss read besides parameters, buffers and inputs.

These are globals, closures, other objects, functions of classes, and what attributes of the model hold.
A captured graph contains these values, so they are compared before every call. Of an object, only the
attributes that reachable code names are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import FunctionType
from typing import Any

from torch import nn

from autopar.capture.held_values import HeldValues
from autopar.capture.libraries import Libraries
from autopar.capture.outside_walk import Memory, Same, Walk
from autopar.capture.python_state import is_library
from autopar.capture.read_names import Names
from autopar.request.model_state import Outside

CALLED = ("forward", "__call__")


class OutsideValues:
    """The outside values of one model and its loss; `differences` compares with the first capture."""

    def __init__(self, model: nn.Module, loss: Callable[..., Any] | None) -> None:
        self._loss = loss
        self._known: Mapping[int, Any] = {id(module): module for module in model.modules()}
        kinds = dict.fromkeys(type(module) for module in model.modules())
        self._forwards = [
            (f"{kind.__module__}.{kind.__qualname__}.forward", kind) for kind in kinds
        ]
        self._kinds = [
            kind for kind in kinds if not all(is_library(base.__module__) for base in kind.__mro__)
        ]
        self._functions = [
            (f"{path}.{key}".lstrip("."), value)
            for path, module in model.named_modules()
            for key, value in vars(module).items()
            if isinstance(value, FunctionType | partial)
        ]
        self._functions += [
            (f"a hook on {path or 'the model'}", hook)
            for path, module in model.named_modules()
            for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
        ]
        called = (self._loss, *(value for _, value in self._functions))
        self._libraries = Libraries(
            [base.__module__ for kind in kinds for base in kind.__mro__]
            + [getattr(each, "__module__", None) or type(each).__module__ for each in called]
        )
        self._memory = Memory()
        self._held: HeldValues | None = None
        self._begin()

    def follow(self, held: HeldValues) -> None:
        """Compare what attributes of the parallel model hold as well, from now on."""
        self._held, self._known = held, held.known
        self._begin()

    def _begin(self) -> None:
        """Find the names that code reads, and remember the present values."""
        self._names, first = Names(), None
        while first is None or not self._names >= first.names:
            self._names |= Names() if first is None else first.names
            if self._held is not None:
                self._held.watch(self._names)
            first = self._walk()
        self._before, self._present = first.values, Outside()
        self._reads = first.reads if first.reads.is_complete else None

    def differences(self) -> Outside:
        """Return the paths whose values have changed, with their present values."""
        if self._reads is None or not self._reads.unchanged():
            walk = self._walk()
            self._present = self._differences(walk.values)
            self._reads = walk.reads if walk.reads.is_complete else None
        return self._present

    def _differences(self, now: Mapping[str, Any]) -> Outside:
        if now == self._before:
            return ()
        places = dict.fromkeys((*self._before, *now))
        return tuple((p, now.get(p)) for p in places if self._before.get(p) != now.get(p))

    def put_on(self) -> AbstractContextManager[None]:
        """Within the context, the copy of the model that is captured holds the present values."""
        walk = self._walk()
        if self._held is None or not self._differences(walk.values):
            return nullcontext()
        return self._held.put_on(walk.tensors())

    def _walk(self) -> Walk:
        self._memory.trim()
        held = self._held
        compared = () if held is None else held.compared
        walk = Walk(self._names, self._memory, self._known, self._libraries, compared)
        for kind in (*self._kinds, type(self._loss)):
            walk.kind(kind, CALLED)
        for path, kind in self._forwards:
            walk.values[path] = Same(kind.forward)
            walk.reads.attributes(kind, "forward")
        for path, value in (*self._functions, ("the loss", self._loss)):
            walk.value(path, value)
        if held is not None:
            walk.reads.result(partial(_same, held), _same(held))
            for path, value in held.values():
                walk.value(path, value)
        return walk


def _same(held: HeldValues) -> list[tuple[str, Same]]:
    return [(path, Same(value)) for path, value in held.values()]


__all__ = ["OutsideValues"]
