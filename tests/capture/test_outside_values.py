"""Values outside of the model that code reads: which changes are seen, and which cost nothing."""

from __future__ import annotations

import argparse
import types
from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autopar.capture.outside import OutsideValues
from autopar.capture.read_names import names_in
from tests.habits.outside_jobs import Base

ARGS = argparse.Namespace(scale=1.0, unread=1.0)
SETTINGS: Any = types.ModuleType("settings_of_a_project")
SETTINGS.scale, SETTINGS.unread, SETTINGS.inner = 1.0, 1.0, {"scale": 1.0}
USERS = UserDict(scale=1.0)
LISTED, TABLE, CHOSEN = [1.0] * 5_000, dict.fromkeys(range(5_000), 1.0), set(range(5_000))


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * SETTINGS.times(x)


def times(x: torch.Tensor) -> float:
    return float(SETTINGS.inner["scale"])


SETTINGS.times = times


class Options:
    """Read under names that code puts together."""

    def __init__(self) -> None:
        self.beta_low = self.beta_high = self.gamma = 1.0
        self.unread = 1.0


OPTIONS = Options()


class Reads(Base):
    """Reads from objects of libraries, modules and large containers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = super().forward(x) * ARGS.scale * SETTINGS.scale * USERS["scale"]
        made = helper(made) * LISTED[3] * TABLE[3] * len(CHOSEN)
        for name in ("gamma",):
            made = made * getattr(OPTIONS, name)
        return made * getattr(OPTIONS, f"beta_{'low' if self.training else 'high'}")


READ: dict[str, Callable[[], Any]] = {
    "namespace": lambda: setattr(ARGS, "scale", 2.0),
    "module": lambda: setattr(SETTINGS, "scale", 2.0),
    "behind a module": lambda: SETTINGS.inner.update(scale=2.0),
    "function of a module": lambda: setattr(SETTINGS, "times", lambda x: 2.0),
    "user dict": lambda: USERS.update(scale=2.0),
    "large list": lambda: LISTED.__setitem__(4_000, 2.0),
    "large dict": lambda: TABLE.__setitem__(4_000, 2.0),
    "large set": lambda: CHOSEN.discard(7),
    "put together": lambda: setattr(OPTIONS, "beta_low", 2.0),
    "in a tuple of names": lambda: setattr(OPTIONS, "gamma", 2.0),
}
UNREAD: dict[str, Callable[[], Any]] = {
    "namespace": lambda: setattr(ARGS, "unread", 2.0),
    "module": lambda: setattr(SETTINGS, "unread", 2.0),
    "object": lambda: setattr(OPTIONS, "unread", 2.0),
}


@pytest.mark.parametrize("name", READ)
def test_a_change_is_seen(name: str) -> None:
    values = OutsideValues(Reads(), None)
    assert values.differences() == ()
    READ[name]()
    found = values.differences()
    assert found and values.differences() == found


@pytest.mark.parametrize("name", UNREAD)
def test_what_no_code_names_may_change(name: str) -> None:
    values = OutsideValues(Reads(), None)
    UNREAD[name]()
    assert values.differences() == ()


def test_a_large_container_has_other_contents_each_time() -> None:
    values = OutsideValues(Reads(), None)
    seen = {values.differences()}
    for value in (3.0, 4.0, 3.0):
        LISTED[0] = value
        seen.add(values.differences())
    assert len(seen) == 4


@pytest.mark.parametrize("name", ["forward", "helped"])
def test_a_function_at_the_address_of_another(name: str) -> None:
    """Programs are kept by these values: a function that is gone is never taken for a new one."""

    class Patched(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.helped(x)

        def helped(self, x: torch.Tensor) -> torch.Tensor:
            return x

    values, seen = OutsideValues(Patched(), None), set()
    for number in range(20):
        setattr(Patched, name, _returning(number))
        seen.add(values.differences())
    assert len(seen) == 20


def _returning(number: int) -> Any:
    """Functions that differ in their code alone, not in what they close over."""
    return eval(f"lambda self, x: x * {number}")


def test_two_classes_of_one_name() -> None:
    def made() -> type[nn.Module]:
        class Local(Base):
            scale = 1.0

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return super().forward(x) * self.scale

        return Local

    first, second = made(), made()
    values = OutsideValues(nn.Sequential(first(), second()), None)
    first.scale = 2.0  # type: ignore[attr-defined]
    assert len(values.differences()) == 1


def test_a_hook_reads_a_global() -> None:
    model = Base()
    model.register_forward_pre_hook(lambda module, args: args[0] * ARGS.scale)
    values = OutsideValues(model, None)
    ARGS.scale = 7.0
    assert [place.rpartition(".")[2] for place, _ in values.differences()] == ["scale"]


def test_names_in_code() -> None:
    found = names_in(Reads.forward.__code__)
    assert {"ARGS", "scale", "gamma", "beta_"} <= found.names
    assert "beta_mid" in found and "gammas" in found and "other" not in found and 3 not in found
    plain = names_in(times.__code__)
    assert "scale" in plain and "scale_2" not in plain and not plain.reads_all
    assert names_in((lambda x: vars(x)).__code__).reads_all
