"""The loss is summed beside the backward, in a step that gives it back at its end.

An all-reduce that the forward waited for would cost its latency, and keep whoever is ahead until the
slowest rank is there.  The backward needs no loss: every rank's gradient of it is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.distributed as dist

_STARTED: ContextVar[list[dist.Work] | None] = ContextVar("started", default=None)


class _Sum(torch.autograd.Function):
    """P -> I: the sum over a group, when its work has ended; gradients stay what they are."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, group: dist.ProcessGroup, started: list[dist.Work]
    ) -> torch.Tensor:
        made = x.clone()
        work = dist.all_reduce(made, group=group, async_op=True)
        assert work is not None
        started.append(work)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None, None


@contextmanager
def late_loss() -> Iterator[None]:
    """Sums of losses that begin inside have ended behind it; inside, nobody may read them."""
    started: list[dist.Work] = []
    token = _STARTED.set(started)
    try:
        yield
    finally:
        _STARTED.reset(token)
    _wait(started)


@contextmanager
def in_time() -> Iterator[None]:
    """Sums inside have ended before anything else is computed, also within `late_loss`."""
    token = _STARTED.set(None)
    try:
        yield
    finally:
        _STARTED.reset(token)


def late_sum(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor | None:
    """A loss that is being summed, where that may end late; None where it may not."""
    started = _STARTED.get()
    if started is None:
        return None
    _wait(started)  # over another axis, what this one is a sum of
    return _Sum.apply(x, group, started)  # type: ignore[no-any-return]


def _wait(started: list[dist.Work]) -> None:
    while started:
        started.pop().wait()
