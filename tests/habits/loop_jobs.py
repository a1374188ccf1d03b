"""What every rank does in tests of loops that differ between ranks; rank 1 is the odd one."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn, optim

import autopar
from autopar.errors import AutoparError

os.environ.setdefault("AUTOPAR_CACHE", tempfile.mkdtemp(prefix="autopar_cache_"))


class Net(nn.Module):
    """Two layers and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.first(x).tanh()).square().mean()


class Loop:
    """A model, its optimizer, and a rank."""

    def __init__(self, preset: str | None, **options: Any) -> None:
        torch.manual_seed(0)
        self.x, self.odd = torch.randn(8, 8), int(os.environ["RANK"]) == 1
        self.model: Any = autopar.parallelize(Net(), 2, {"x": self.x}, preset=preset, **options)
        self.optimizer: Any = optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.step()

    def backward(self, scale: float = 1.0) -> None:
        (self.model(x=self.x) * scale).backward()

    def step(self) -> None:
        self.backward()
        self.optimizer.step()
        self.model.zero_grad()


def lr(loop: Loop) -> None:
    loop.optimizer.param_groups[0]["lr"] = 0.2 if loop.odd else 0.1
    loop.step()


def skipped(loop: Loop) -> None:
    loop.backward()
    if not loop.odd:
        loop.optimizer.step()
    loop.model.zero_grad()


def dropped(loop: Loop) -> None:
    loop.backward()
    if loop.odd:
        loop.optimizer.zero_grad()


def scaled(loop: Loop) -> None:
    loop.backward(2.0 if loop.odd else 1.0)
    loop.optimizer.step()
    loop.model.zero_grad()


def other_optimizer(loop: Loop) -> None:
    kind = optim.Adam if loop.odd else optim.SGD
    loop.backward()
    kind(loop.model.parameters(), lr=0.1).step()
    loop.model.zero_grad()


def no_sync(loop: Loop) -> None:
    with loop.model.no_sync() if loop.odd else contextlib.nullcontext():
        loop.backward()


def microbatches(loop: Loop) -> None:
    loop.model.train_step(x=loop.x, microbatches=2 if loop.odd else 4)


def clipped(loop: Loop) -> None:
    loop.backward()
    loop.model.clip_grad_norm_(0.2 if loop.odd else 0.1)


DIFFERENT: dict[str, tuple[Callable[[Loop], None], str]] = {
    "lr": (lr, "rank 1 stepped SGD with lr 0.2, rank 0 with lr 0.1"),
    "skipped": (skipped, "rank 1 made no optimizer step, rank 0 made 1"),
    "dropped": (dropped, "rank 1 has no gradients, rank 0 has gradients"),
    "scaled": (scaled, "rank 1 had a backward from gradient 2, rank 0 from gradient 1"),
    "other_optimizer": (other_optimizer, "rank 1 stepped Adam, rank 0 stepped SGD"),
    "no_sync": (no_sync, "rank 1 ran a forward under no_sync(), rank 0 outside no_sync()"),
    "microbatches": (
        microbatches,
        "rank 1 called train_step with microbatches 2, rank 0 with micr",
    ),
    "clipped": (clipped, "rank 1 clipped gradients with max_norm 0.2, rank 0 with max_norm 0.1"),
}


def different(name: str, preset: str) -> None:
    """The next forward raises the same on both ranks."""
    loop = Loop(preset)
    act, words = DIFFERENT[name]
    try:
        act(loop)
        loop.step()
    except AutoparError as error:
        assert type(error).__name__ == "RankMismatchError", error
        assert words in str(error) and "all_reduce" in str(error), error
        return
    raise AssertionError("not noticed")


def alike(preset: str | None) -> None:
    """What ranks may do: none of it counts as a difference."""
    loop = Loop(preset)
    model = loop.model
    beside = nn.Linear(2, 2)  # a model of this rank alone
    own = optim.SGD(beside.parameters(), lr=0.5 if loop.odd else 0.1)
    if loop.odd:
        beside(torch.ones(1, 2)).sum().backward()
        own.step()
        own.zero_grad()
    loop.step()
    with torch.no_grad():
        model(x=loop.x)
    group = loop.optimizer.param_groups[0]
    group["note"], group["foreach"] = f"rank {loop.odd}", loop.odd
    schedule = optim.lr_scheduler.StepLR(loop.optimizer, 1, 0.5)
    for _ in range(3):
        with model.no_sync():
            loop.backward()
        loop.backward(0.5 * (1 + 1e-7 * loop.odd))  # rounded differently
        model.clip_grad_norm_(1.0)
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        schedule.step()
    group["lr"] = torch.tensor(0.01)
    loop.step()
    loop.optimizer = optim.LBFGS(model.parameters(), max_iter=2) if preset == "ddp" else None
    model.train_step(x=loop.x, microbatches=2)
    model.zero_grad(set_to_none=True)
    model(x=loop.x)


def stages() -> None:
    """Each stage has its own optimizer, with other settings, or none."""
    torch.manual_seed(0)
    x, rank = torch.randn(8, 8), int(os.environ["RANK"])
    model: Any = autopar.parallelize(Net(), 2, {"x": x}, pipeline=2)
    optimizer = (optim.Adam if rank else optim.SGD)(model.parameters(), lr=0.1 * (1 + rank))
    for _ in range(3):
        model.train_step(x=x)
        optimizer.step()
        model.zero_grad()


def two_threads(models: int) -> None:
    """A second thread is refused while the first is in a call; the first ends its call."""
    from autopar.runtime import one_thread

    loop = Loop("fsdp")
    other = Loop("fsdp") if models == 2 else loop
    said: list[str] = []
    entered, over = threading.Event(), threading.Event()

    def hold() -> None:
        with one_thread.only("a training step"):
            entered.set()
            over.wait(30)

    thread = threading.Thread(target=hold, name="holder")
    thread.start()
    entered.wait(30)
    reports, one_thread.report = one_thread.report, said.append
    try:
        for call in (lambda: other.model(x=other.x), lambda: other.model.train_step(x=other.x)):
            try:
                call()
            except AutoparError as error:
                said.append(str(error))
            else:
                raise AssertionError("not refused")
    finally:
        one_thread.report = reports
        over.set()
        thread.join()
    assert all("holder" in text and "MainThread" in text and "lock" in text for text in said), said
    loop.step()
    later = threading.Thread(target=loop.step)  # one after the other is allowed
    later.start()
    later.join()
    loop.step()
