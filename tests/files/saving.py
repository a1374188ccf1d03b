"""A small training that is saved: what tests of checkpoints share."""

from __future__ import annotations

import builtins
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from autopar.runtime import checkpoint


class Training:
    """A model, its optimizer and scheduler, and data in `extra`."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)).double()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.extra: dict[str, Any] = {"position": 0, "order": torch.arange(3)}

    def step(self) -> float:
        """One update, whose batch is drawn from all kinds of generators."""
        batch = torch.rand(3, 4, dtype=torch.float64) + random.random() + np.random.rand()
        self.optimizer.zero_grad()
        loss = self.model(batch).square().mean()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.extra["position"] += 1
        return loss.item()

    def save(self, path: Path, step: int) -> None:
        checkpoint.save(
            path, self.model, self.optimizer, step, scheduler=self.scheduler, extra=self.extra
        )

    def load(self, path: Path) -> int:
        return checkpoint.load(
            path, self.model, self.optimizer, scheduler=self.scheduler, extra=self.extra
        )

    def state(self) -> list[Any]:
        """Everything, to be compared by `==`."""
        tensors = [value.tolist() for value in self.model.state_dict().values()]
        kept = [
            [[key, state[key].tolist()] for key in sorted(state)]
            for state in self.optimizer.state_dict()["state"].values()
        ]
        groups = [
            {k: v for k, v in group.items() if k != "params"}
            for group in self.optimizer.param_groups
        ]
        order = self.extra["order"].tolist()
        return [
            tensors, kept, groups, self.scheduler.state_dict(), self.extra["position"], order,
            torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state()),
        ]  # fmt: skip


def saved(path: Path, steps: int = 2) -> Training:
    """A training after so many steps, saved."""
    training = Training()
    for _ in range(steps):
        training.step()
    training.save(path, steps)
    return training


CALLS: tuple[tuple[Any, str], ...] = (
    (os, "open"), (os, "fsync"), (os, "replace"), (os, "rename"), (os, "mkdir"), (os, "unlink"),
    (os, "rmdir"), (os, "write"), (os, "stat"), (os, "close"), (builtins, "open"), (shutil, "rmtree"),
)  # fmt: skip
"""By which a save reaches the disk."""


@contextmanager
def failing(number: int, fail: Callable[[], None], *, is_cut: bool = False) -> Iterator[list[int]]:
    """The call of that number does `fail` first; the list has how many there were.

    `is_cut`: so do all later ones, and files are closed; to be used with what raises.
    """
    count, os_close = [0], os.close
    originals = [(home, name, getattr(home, name)) for home, name in CALLS]

    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if (
                is_cut and original is os_close
            ):  # as the system closes what a killed process had open
                return original(*args, **kwargs)
            count[0] += 1
            if count[0] == number or (is_cut and count[0] > number):
                fail()
            return original(*args, **kwargs)

        return call

    for home, name, original in originals:
        setattr(home, name, wrapped(original))
    try:
        yield count
    finally:
        for home, name, original in originals:
            setattr(home, name, original)
