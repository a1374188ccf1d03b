"""Programs whose forward or loss reads what is not the model's own, and changes between steps."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import autopar
from tests.distributed.jobs import same_weights

FACTOR = 1.0
TABLE = {"inner": {"scale": 1.0}}
SEEN: list[int] = []
"""Grows in every step; the loss names it and computes nothing with it."""


class Base(nn.Module):
    """Three equal layers and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x).relu()
        made: torch.Tensor = self.head(x)
        return made


class Schedule:
    """A number that the training loop advances."""

    def __init__(self) -> None:
        self.steps = 0

    @property
    def beta(self) -> float:
        return 1.0 + self.steps / 2


class ByGlobal(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * FACTOR * TABLE["inner"]["scale"]


class ByClass(Base):
    scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * type(self).scale


class Criterion(nn.Module):
    """A loss with settings and a tensor of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = 1.0
        self.entropy = nn.CrossEntropyLoss(weight=torch.ones(4, dtype=torch.float64))

    def forward(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.beta * self.entropy(output, y)
        return made


Prepared = tuple[nn.Module, Callable[..., torch.Tensor], Callable[[int], Any]]
"""A model, its loss, and what changes before each step."""


def entropy(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, y)


def by_global() -> Prepared:
    def change(step: int) -> None:
        global FACTOR
        FACTOR = 1.0 + step
        TABLE["inner"]["scale"] = 1.0 - step / 10

    change(0)
    return ByGlobal(), entropy, change


def by_class() -> Prepared:
    def change(step: int) -> None:
        ByClass.scale = 1.0 + step

    change(0)
    return ByClass(), entropy, change


def by_closure() -> Prepared:
    beta = 1.0

    def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, y) * beta

    def change(step: int) -> None:
        nonlocal beta
        beta = 1.0 + step

    return Base(), loss, change


def by_partial_of_object() -> Prepared:
    schedule = Schedule()

    def loss(output: torch.Tensor, y: torch.Tensor, *, by: Schedule) -> torch.Tensor:
        return F.cross_entropy(output, y) * by.beta

    def change(step: int) -> None:
        schedule.steps = step

    return Base(), functools.partial(loss, by=schedule), change


def by_criterion() -> Prepared:
    criterion = Criterion()

    def change(step: int) -> None:
        criterion.beta = 1.0 + step
        criterion.entropy.label_smoothing = step / 10

    return Base(), criterion, change


def by_weights_of_criterion() -> Prepared:
    criterion = Criterion()

    def change(step: int) -> None:
        criterion.entropy.weight[1] = 1.0 + step

    return Base(), lambda output, y: criterion(output, y), change


class Warm:
    """Named by the loss; decides something only from the third step on."""

    def __init__(self) -> None:
        self.step, self.unrelated = 0, 0


def by_threshold() -> Prepared:
    warm = Warm()

    def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, y) * (1.0 if warm.step < 3 else 2.0)

    def change(step: int) -> None:
        warm.step = warm.unrelated = step

    return Base(), loss, change


def by_method() -> Prepared:
    class Trainer:
        def __init__(self) -> None:
            self.beta, self.history = 1.0, [0.0]

        def loss(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(output, y) * self.beta

    trainer = Trainer()

    def change(step: int) -> None:
        trainer.history.append(step)
        trainer.beta = 1.0 + step // 2

    return Base(), trainer.loss, change


KINDS: dict[str, Callable[[], Prepared]] = {
    made.__name__: made
    for made in (
        by_global, by_class, by_closure, by_partial_of_object, by_criterion,
        by_weights_of_criterion, by_method, by_threshold,
    )
}  # fmt: skip


def batches(count: int) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(3)
    x = torch.randn(count, 8, 8, dtype=torch.float64)
    y = torch.randint(0, 4, (count, 8))
    return [{"x": x[step], "y": y[step]} for step in range(count)]


def follows(kind: str, ranks: int, options: dict[str, Any]) -> None:
    """Losses and weights of four steps equal one process's."""
    torch.manual_seed(7)
    model, loss, change = KINDS[kind]()
    model = model.double()
    single, given = copy.deepcopy(model), batches(4)
    if "pipeline" in options:
        options = options | {"pipeline": autopar.Pipeline(options["pipeline"], microbatches=1)}
    parallel = autopar.parallelize(model, ranks, given[0], loss=loss, **options)
    mine = torch.optim.SGD(parallel.parameters(), lr=0.1)
    its = torch.optim.SGD(single.parameters(), lr=0.1)
    for step, batch in enumerate(given):
        change(step)
        got = parallel.train_step(**batch)
        want = loss(single(batch["x"]), y=batch["y"])
        want.backward()
        mine.step(), its.step()
        mine.zero_grad(), its.zero_grad()
        error = abs(float(got) - float(want.detach()))
        assert error <= 1e-9, (kind, step, float(got), float(want.detach()))
    same_weights(parallel, single, 1e-9)


def unused(ranks: int, options: dict[str, Any]) -> None:
    """What changes and is not computed with makes no program, on one rank alone neither."""

    def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if len(SEEN) < 0:
            return output.sum()
        return F.cross_entropy(output, y)

    given = batches(4)
    parallel = autopar.parallelize(Base().double(), ranks, given[0], loss=loss, **options)
    programs = parallel._programs._compiler._programs
    before = len(programs)
    for step, batch in enumerate(given):
        if torch.distributed.get_rank() == 0:
            SEEN.append(step)
        parallel(**batch).backward()
    assert len(programs) == before


def warned(ranks: int) -> None:
    """A number that has had five values is warned of by its name, with what to do."""
    _, loss, change = by_closure()
    given = batches(1)[0]
    parallel = autopar.parallelize(Base().double(), ranks, given, loss=loss, preset="ddp")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(8):
            change(step)
            parallel(**given).backward()
    said = [str(each.message) for each in caught if "values" in str(each.message)]
    assert len(said) == 1 and "beta of" in said[0] and "torch.tensor" in said[0], said


class Logging(Base):
    """It names what it computes nothing with."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        len(SEEN)
        return super().forward(x) * FACTOR


def ranks_differ(ranks: int, options: dict[str, Any]) -> None:
    """What one rank alone sets is told to all, at once; where it changes no graph, it may differ."""
    global FACTOR
    FACTOR, rank = 1.0, torch.distributed.get_rank()
    (batch, *_) = batches(1)
    parallel = autopar.parallelize(
        Logging().double(), ranks, batch, loss=entropy, hardware="cpu", **options
    )
    step = parallel.train_step if "pipeline" in options else parallel
    for number in range(12):
        FACTOR = 1.0 + (number // 2) % 2  # what is planned for it is there again, under other keys
        SEEN.extend([1] * rank)
        step(**batch)
    FACTOR = 1.0
    FACTOR = 1.0 + rank
    try:
        step(**batch)
    except autopar.errors.RankMismatchError as error:
        assert "FACTOR is 2.0" in str(error) and "same value on every rank" in str(error), error
    else:
        raise AssertionError("a rank multiplied by another factor, and nothing was said")
    FACTOR = 1.0
    if rank:
        parallel.layers[1].eval()
    try:
        step(**batch)
    except autopar.errors.RankMismatchError as error:
        assert "modes of the model's modules" in str(error), error
    else:
        raise AssertionError("a module of one rank was in another mode, and nothing was said")
    parallel.train()
    step(**batch)
