"""All-reduces the loss concurrently with the backward, in a step that returns it at its end.

If the forward waited for the all-reduce, it would pay its latency and wait for the slowest rank.  The
backward does not need the loss value: every rank's gradient of it is the same.
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
    """P -> I: the sum over a group, valid once its work has ended; gradients pass unchanged."""

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
    """Let all-reduces of losses that start inside end with the context; until then, do not read them."""
    started: list[dist.Work] = []
    token = _STARTED.set(started)
    try:
        yield
    finally:
        _STARTED.reset(token)
    _wait(started)


@contextmanager
def in_time() -> Iterator[None]:
    """Let sums inside be waited for at once, even within `late_loss`."""
    token = _STARTED.set(None)
    try:
        yield
    finally:
        _STARTED.reset(token)


def late_sum(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor | None:
    """Start the sum of a loss if it may end late, and return its result; None if it may not."""
    started = _STARTED.get()
    if started is None:
        return None
    _wait(started)  # the sum over another axis, which is this one's input
    return _Sum.apply(x, group, started)  # type: ignore[no-any-return]


def _wait(started: list[dist.Work]) -> None:
    while started:
        started.pop().wait()
