"""A step walks over the values outside of a model only if something that was read there has changed."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from autopar.capture.outside import OutsideValues
from autopar.capture.outside_walk import Walk
from tests.habits.outside_jobs import Base


class Part:
    """An object with attributes, of which the last is a slot."""

    __slots__ = ("__dict__", "__weakref__", "late", "slot")

    def __init__(self, slot: float = 1.0) -> None:
        self.slot, self.scale = slot, 1.0


class Other(Part):
    """Takes the place of a class."""


class Held:
    """Everything that the model below reads."""

    def __init__(self) -> None:
        self.part = Part()
        self.listed: list[Any] = [1.0, [2.0]]
        self.table: dict[Any, Any] = {"a": 1.0, 2: [1.0]}
        self.ordered = OrderedDict(a=1.0)
        self.queue, self.chosen = deque([1.0]), {1.0}
        self.array, self.tensor = np.ones(3), torch.ones(3)
        self.call = partial(pow, 2.0)
        self.lambdas = [eval("lambda: 1.0"), eval("lambda: 1.0")]
        self.module = torch.nn.Linear(2, 2)
        self.function = self.made(1.0)
        self.unread = 0

    @staticmethod
    def made(value: float) -> Callable[..., float]:
        def function(x: float = 1.0, *, y: float = 1.0) -> float:
            return value * x * y

        return function


HELD = Held()


class Reader(Base):
    """Reads all of it."""

    kind = Held

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = HELD.part
        values = [part.slot, part.scale, getattr(part, "late", 1.0)]
        values += [HELD.listed, HELD.table, HELD.ordered, HELD.queue, HELD.chosen]
        values += [HELD.array, HELD.tensor, HELD.call, HELD.function, HELD.added]
        values += [HELD.lambdas, HELD.module.weight]
        return x * len(values) * self.helped()

    def helped(self) -> float:
        return 1.0


def _code() -> None:
    HELD.function.__code__ = HELD.made(1.0).__code__.replace(co_name="other")


CHANGES: dict[str, Callable[[], Any]] = {
    "slot": lambda: setattr(HELD.part, "slot", 2.0),
    "empty slot": lambda: setattr(HELD.part, "late", 2.0),
    "attribute": lambda: setattr(HELD.part, "scale", 2.0),
    "object": lambda: setattr(HELD, "part", Part(2.0)),
    "dict of an object": lambda: setattr(HELD.part, "__dict__", {"scale": 2.0}),
    "class of an object": lambda: setattr(HELD.part, "__class__", Other),
    "new attribute": lambda: setattr(HELD, "added", 2.0),
    "item of a list": lambda: HELD.listed.__setitem__(0, 2.0),
    "longer list": lambda: HELD.listed.append(2.0),
    "list in a list": lambda: HELD.listed[1].append(2.0),
    "item of a dict": lambda: HELD.table.update(a=2.0),
    "new key": lambda: HELD.table.update(b=2.0),
    "other key": lambda: (HELD.table.pop("a"), HELD.table.update(b=1.0)),
    "list in a dict": lambda: HELD.table[2].append(2.0),
    "ordered dict": lambda: HELD.ordered.update(a=2.0),
    "deque": lambda: HELD.queue.append(2.0),
    "set": lambda: HELD.chosen.add(2.0),
    "array": lambda: HELD.array.fill(2.0),
    "tensor": lambda: HELD.tensor.mul_(2.0),
    "other tensor": lambda: setattr(HELD, "tensor", torch.zeros(3)),
    "partial": lambda: HELD.call.keywords.update(mod=None),
    "closure": lambda: setattr(HELD.function.__closure__[0], "cell_contents", 2.0),  # type: ignore[attr-defined]
    "default": lambda: setattr(HELD.function, "__defaults__", (2.0,)),
    "keyword default": lambda: HELD.function.__kwdefaults__.update(y=2.0),
    "code": _code,
    "code of the first of two of one name": lambda: setattr(
        HELD.lambdas[0], "__code__", (lambda: 2.0).__code__
    ),
    "parameters of a module": lambda: HELD.module.__dict__.update(_parameters={}),
    "method": lambda: setattr(Reader, "helped", lambda self: 2.0),
    "bases": lambda: setattr(Held.__mro__[0], "part", 2.0),
}


@pytest.fixture(autouse=True)
def held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new object in each test."""
    monkeypatch.setitem(globals(), "HELD", Held())
    monkeypatch.setattr(Reader, "helped", Reader.helped)
    monkeypatch.setattr(Held, "part", None, raising=False)


@pytest.mark.parametrize("name", CHANGES)
def test_a_walk_follows_a_change(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = OutsideValues(Reader(), None)
    assert values.differences() == ()
    with monkeypatch.context() as context:
        context.setattr(Walk, "kind", _no_walk)
        assert values.differences() == ()
    CHANGES[name]()
    found = values.differences()
    assert found
    with monkeypatch.context() as context:
        context.setattr(Walk, "kind", _no_walk)
        assert values.differences() == found


def test_what_is_equal_again_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    values = OutsideValues(Reader(), None)
    HELD.listed[1] = [2.0]
    HELD.unread += 1
    assert values.differences() == ()
    HELD.unread += 1
    monkeypatch.setattr(Walk, "kind", _no_walk)
    assert values.differences() == ()


def test_a_key_that_was_deleted_makes_room_for_another() -> None:
    """The size of the namespace is as before."""
    HELD.__dict__["room"] = 1.0
    values = OutsideValues(Reader(), None)
    del HELD.__dict__["room"]
    HELD.__dict__["added"] = 2.0
    assert [place.rpartition(".")[2] for place, _ in values.differences()] == ["added"]


def test_inference_tensors_are_read_each_time() -> None:
    with torch.inference_mode():
        HELD.tensor = torch.ones(3)
    values = OutsideValues(Reader(), None)
    assert values.differences() == ()
    with torch.inference_mode():
        HELD.tensor.mul_(2.0)
    assert values.differences()


@pytest.mark.parametrize("dies", [True, False])
def test_an_object_behind_a_weak_reference_is_not_kept_alive(dies: bool) -> None:
    kept = Part()
    HELD.listed.append(weakref.ref(kept))
    values = OutsideValues(Reader(), None)
    assert values.differences() == ()
    if dies:
        del kept
        gc.collect()
        assert HELD.listed[-1]() is None
    else:
        kept.slot = 2.0
    assert values.differences()


def _no_walk(*_: Any) -> None:
    raise AssertionError("nothing was replaced")
