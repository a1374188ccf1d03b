"""Programs that change what attributes of the model hold, or functions of its classes, on ranks."""

from __future__ import annotations

import copy
import enum
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import autopar
from autopar.errors import RankMismatchError
from tests.distributed.jobs import same_weights
from tests.habits.outside_jobs import Base, batches, entropy


def one() -> torch.Tensor:
    return torch.tensor(1.0, dtype=torch.float64)


class Box:
    """An object of the user's own."""

    def __init__(self) -> None:
        self.scale = one()
        self.inner = {"deep": [{"deeper": (one(), 1.0)}]}
        self.owner: Any = self


class Slotted:
    """Without a ``__dict__``."""

    __slots__ = ("__weakref__", "number", "scale")

    def __init__(self) -> None:
        self.scale, self.number = one(), 1.0


@dataclass
class Settings:
    """Tensors beside numbers."""

    scale: torch.Tensor
    number: float = 1.0


class Kind(enum.Enum):
    """A plain value that is no number."""

    PLAIN = 1


class Holding(Base):
    """Multiplies its output by tensors and numbers in containers and objects of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.own = one()
        self.listed = [one(), 1.0]
        self.table = {"scale": one(), 3: 1.0}
        self.pair = (one(), [1.0])
        self.space = SimpleNamespace(scale=one(), number=1.0)
        self.box, self.slotted, self.settings = Box(), Slotted(), Settings(one())
        self.array = np.ones(4)
        self.queue = deque([one(), 1.0])
        self.ordered = OrderedDict(number=1.0)
        self.chosen = {1.0}
        self.many = [1.0] * 2_000
        self.scale_low = [one()]
        self.names = ("scale_low",)
        self.later: Any = None
        self.kind = Kind.PLAIN
        self.heads = [self.head]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = super().forward(x) * self.own * self.listed[0] * self.listed[1]
        made = made * self.table["scale"] * self.table[3] * self.pair[0] * self.pair[1][0]
        made = made * self.space.scale * self.space.number
        deeper = self.box.inner["deep"][0]["deeper"]
        made = made * self.box.scale * deeper[0] * deeper[1]
        made = made * self.slotted.scale * self.slotted.number
        made = made * self.settings.scale * self.settings.number
        made = made * torch.as_tensor(self.array) * float(self.array[0])
        made = made * self.queue[0] * self.queue[1] * self.ordered["number"] * max(self.chosen)
        made = made * sum(self.many) / 2_000 * getattr(self, f"scale_{'low'}")[0]
        if self.later is not None:
            made = made * (self.later["scale"] if isinstance(self.later, dict) else self.later)
        return self.shifted(made) * len(self.heads)

    def shifted(self, made: torch.Tensor) -> torch.Tensor:
        return made + getattr(self, "shift", 0.0)


Change = Callable[[Any, float], Any]
CHANGES: dict[str, Change] = {
    "own_filled": lambda m, v: m.own.fill_(v),
    "own_set": lambda m, v: setattr(m, "own", one() * v),
    "listed_set": lambda m, v: m.listed.__setitem__(0, one() * v),
    "listed_filled": lambda m, v: m.listed[0].fill_(v),
    "listed_number": lambda m, v: m.listed.__setitem__(1, v),
    "listed_replaced": lambda m, v: setattr(m, "listed", [one() * v, v]),
    "table_set": lambda m, v: m.table.update(scale=one() * v),
    "table_number": lambda m, v: m.table.__setitem__(3, v),
    "table_replaced": lambda m, v: setattr(m, "table", {"scale": one(), 3: v}),
    "pair_filled": lambda m, v: m.pair[0].mul_(v),
    "pair_number": lambda m, v: m.pair[1].__setitem__(0, v),
    "space_set": lambda m, v: setattr(m.space, "scale", one() * v),
    "space_number": lambda m, v: setattr(m.space, "number", v),
    "box_set": lambda m, v: setattr(m.box, "scale", one() * v),
    "box_deep": lambda m, v: m.box.inner["deep"][0]["deeper"][0].fill_(v),
    "box_number": lambda m, v: m.box.inner["deep"].__setitem__(0, {"deeper": (one(), v)}),
    "box_replaced": lambda m, v: setattr(m, "box", _box(v)),
    "slots_set": lambda m, v: setattr(m.slotted, "scale", one() * v),
    "slots_number": lambda m, v: setattr(m.slotted, "number", v),
    "dataclass": lambda m, v: m.settings.scale.fill_(v),
    "array": lambda m, v: m.array.__setitem__(slice(None), v),
    "deque": lambda m, v: m.queue.__setitem__(1, v),
    "ordered": lambda m, v: m.ordered.update(number=v),
    "set": lambda m, v: m.chosen.add(v),
    "many": lambda m, v: m.many.__setitem__(7, v),
    "put_together": lambda m, v: m.scale_low[0].fill_(v),
    "none_to_tensor": lambda m, v: setattr(m, "later", one() * v),
    "none_to_dict": lambda m, v: setattr(m, "later", {"scale": one() * v}),
    "new": lambda m, v: setattr(m, "shift", one() * v),
}


def _box(value: float) -> Box:
    made = Box()
    made.scale = one() * value
    return made


def follows(names: list[str], options: dict[str, Any]) -> None:
    """Losses and weights equal one process's after each change, and in a step without one."""
    torch.manual_seed(7)
    single, batch = Holding().double(), batches(1)[0]
    parallel = autopar.parallelize(copy.deepcopy(single), 2, batch, loss=entropy, **options)
    step = _both(single, parallel)
    step(batch, "as it was")
    for turn, name in enumerate(names):
        with torch.no_grad():
            for model in (single, parallel):
                CHANGES[name](model, 1.25 + turn / 100)
        step(batch, name)
    step(batch, "nothing more")
    same_weights(parallel, single, 1e-9)


def _both(single: Any, parallel: Any) -> Callable[[dict[str, torch.Tensor], str], None]:
    """Return a function that trains both models by one step and compares their losses."""
    mine = torch.optim.SGD(parallel.parameters(), lr=1e-5)
    its = torch.optim.SGD(single.parameters(), lr=1e-5)

    def step(batch: dict[str, torch.Tensor], what: str) -> None:
        got = parallel.train_step(**batch)
        want = entropy(single(batch["x"]), batch["y"])
        want.backward()
        mine.step(), its.step()
        mine.zero_grad(), its.zero_grad()
        error = abs(float(got) - float(want.detach()))
        assert error <= 1e-9 * max(1.0, abs(float(want.detach()))), (
            what,
            float(got),
            float(want.detach()),
        )

    return step


def patched(options: dict[str, Any]) -> None:
    """A forward or a method that is replaced on its class is followed, again and again."""
    torch.manual_seed(7)
    single, batch = Holding().double(), batches(1)[0]
    parallel = autopar.parallelize(copy.deepcopy(single), 2, batch, loss=entropy, **options)
    step = _both(single, parallel)
    step(batch, "as it was")
    places: list[tuple[type, str]] = [
        (Holding, "forward"), (Holding, "shifted"), (Base, "forward"), (torch.nn.Linear, "forward"),
    ]  # fmt: skip
    for kind, name in places:
        before = vars(kind)[name]
        try:
            for factor in (2.0, 3.0):  # the second function may have the address of the first
                setattr(kind, name, _times(before, factor))
                step(batch, f"{kind.__name__}.{name} times {factor}")
        finally:
            setattr(kind, name, before)
        step(batch, "as it was again")
    same_weights(parallel, single, 1e-9)


def _times(function: Callable[..., torch.Tensor], factor: float) -> Callable[..., torch.Tensor]:
    return lambda self, x: factor * function(self, x)


class Logging(Holding):
    """It names what it computes nothing with."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []
        self.history: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        len(self.seen)
        return super().forward(x)


def ranks_differ(options: dict[str, Any]) -> None:
    """A value that one rank alone sets is reported on all; if no graph depends on it, it may differ."""
    rank, batch = torch.distributed.get_rank(), batches(1)[0]
    torch.manual_seed(7)
    single = Logging().double()
    parallel = autopar.parallelize(copy.deepcopy(single), 2, batch, loss=entropy, **options)
    step = _both(single, parallel)
    for _ in range(4):
        if rank == 0:
            parallel.seen.append(one())
            parallel.history.append(one())
        step(batch, "seen")
    parallel.listed[0] = one() * (2 + rank)
    with pytest.raises(RankMismatchError, match=r"listed\[0\] is 2\.0.*same value on every rank"):
        parallel.train_step(**batch)
    parallel.listed[0] = single.listed[0] = one() * 2
    parallel.zero_grad()
    step(batch, "equal again")
    same_weights(parallel, single, 1e-9)


def warned() -> None:
    """A tensor that has had five values is named in a warning, with what to do."""
    batch = batches(1)[0]
    parallel = autopar.parallelize(Holding().double(), 2, batch, loss=entropy, preset="ddp")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(7):
            parallel.listed[0] = one() * number
            parallel(**batch).backward()
    said = [str(each.message) for each in caught if "values" in str(each.message)]
    assert len(said) == 1 and said[0].startswith("listed[0] has had 5 values"), said
    assert "register it as a buffer" in said[0]
