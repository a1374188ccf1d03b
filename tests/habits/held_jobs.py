"""Programs that change tensors in containers and objects that hang on the model, on ranks."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import autopar
from autopar.errors import InputError
from tests.habits.outside_jobs import Base, batches, entropy


class Box:
    """An object of the user's own."""

    def __init__(self) -> None:
        self.scale = _one()
        self.inner = {"scale": _one()}


class Holding(Base):
    """Multiplies its output by tensors in a list, a dict, objects and an array."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = [_one()]
        self.table = {"scale": _one()}
        self.space = SimpleNamespace(scale=_one())
        self.box = Box()
        self.array = np.ones(4)
        self.seen = [_one()]  # forward does not read it

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = super().forward(x) * self.listed[0] * self.table["scale"] * self.space.scale
        made = made * self.box.scale * self.box.inner["scale"]
        return made * torch.as_tensor(self.array)


def _one() -> torch.Tensor:
    return torch.tensor(1.0, dtype=torch.float64)


CHANGES: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "list_set": lambda model, value: model.listed.__setitem__(0, value),
    "list_filled": lambda model, value: model.listed[0].copy_(value),
    "dict_set": lambda model, value: model.table.update(scale=value),
    "dict_filled": lambda model, value: model.table["scale"].copy_(value),
    "namespace_set": lambda model, value: setattr(model.space, "scale", value),
    "namespace_filled": lambda model, value: model.space.scale.copy_(value),
    "object_set": lambda model, value: setattr(model.box, "scale", value),
    "object_filled": lambda model, value: model.box.scale.copy_(value),
    "object_dict": lambda model, value: model.box.inner.update(scale=value),
    "array": lambda model, value: model.array.__setitem__(0, value.item()),
}

PLACES = {
    "list": r"^listed\[0\], ",
    "dict": r"^table\['scale'\], ",
    "namespace": r"^space\.scale, ",
    "object": r"^box\.(scale|inner\['scale'\]), ",
    "array": r"^array, ",
}


def refused(options: dict[str, Any]) -> None:
    """A step after each of the changes raises and names the place; other containers may change."""
    batch = batches(1)[0]
    for name, change in CHANGES.items():
        parallel = autopar.parallelize(Holding().double(), 2, batch, loss=entropy, **options)
        parallel.seen[0] = 2 * _one()
        parallel.seen.append(_one())
        with torch.no_grad():
            parallel(**batch)
            change(parallel, 2 * _one())
            with pytest.raises(InputError, match=PLACES[name.split("_")[0]]):
                parallel(**batch)


def class_patched(options: dict[str, Any]) -> None:
    """A step after the forward of a class was replaced raises, and names the class."""
    batch = batches(1)[0]
    parallel = autopar.parallelize(Holding().double(), 2, batch, loss=entropy, **options)
    before = Holding.forward
    try:
        Holding.forward = lambda self, x: 3 * before(self, x)  # type: ignore[method-assign]
        with pytest.raises(InputError, match=r"Holding\.forward was replaced"), torch.no_grad():
            parallel(**batch)
    finally:
        Holding.forward = before  # type: ignore[method-assign]
