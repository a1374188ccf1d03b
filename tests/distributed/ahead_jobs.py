"""What every rank does where weights are gathered one block ahead."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch

from autopar.runtime.ahead import Ahead
from autopar.runtime.regather import Gathered, Gathers
from tests import parity


def order(work: parity.Work) -> tuple[list[str], list[str]]:
    """Starts and uses of the gathers of numbered blocks: in a forward, and in its backward."""
    parallel, inputs = parity.parallel_of(work), parity.reference(work.name).inputs
    events: list[str] = []
    numbers: dict[int, int] = {}
    start, take, remember = Ahead.start, Ahead.take, Ahead.remember
    started, again = Gathers._started, Gathered.again

    def said_start(self: Ahead) -> None:
        if self._started is None:
            events.append(f"start {_number(self)}")
        start(self)

    def said_take(self: Ahead) -> Any:
        events.append(f"run {_number(self)}")
        return take(self)

    def numbered(self: Ahead, gathers: Gathers) -> None:
        numbers[id(gathers)] = _number(self)
        remember(self, gathers)

    def said_again(self: Gathers) -> Any:
        if id(self) in numbers:
            events.append(f"again {numbers[id(self)]}")
        return started(self)

    def said_used(self: Gathered) -> torch.Tensor:
        made = again(self)
        if self.gathers.waiting == 0 and id(self.gathers) in numbers:
            events.append(f"done {numbers[id(self.gathers)]}")
        return made

    with (
        mock.patch.object(Ahead, "start", said_start),
        mock.patch.object(Ahead, "take", said_take),
        mock.patch.object(Ahead, "remember", numbered),
        mock.patch.object(Gathers, "_started", said_again),
        mock.patch.object(Gathered, "again", said_used),
    ):
        loss = parallel(**inputs)
        forward, events[:] = [*events], []
        loss.backward()
    return forward, events


def _number(ahead: Ahead) -> int:
    return 0 if ahead.before is None else 1 + _number(ahead.before)


class Stopped(Exception):
    """Somebody's loop was interrupted."""


def failed_and_evaluated(work: parity.Work) -> bool:
    """Whether the same backward twice is twice the gradient, behind a failed step and an evaluation."""
    parallel, case = parity.parallel_of(work), parity.reference(work.name)
    calls = 0
    take = Ahead.take

    def fails(self: Ahead) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise Stopped
        return take(self)

    with mock.patch.object(Ahead, "take", fails), pytest.raises(Stopped):
        parallel(**case.inputs)
    with torch.no_grad():
        parallel(**case.inputs)
    loss = parallel(**case.inputs)
    parity.close(loss.detach(), case.losses[0], "loss", tolerance=case.tolerance)
    first = next(parallel.parameters())
    loss.backward(retain_graph=True)
    once = first.grad.to_local().clone()  # type: ignore[union-attr]
    loss.backward()
    return torch.allclose(first.grad.to_local(), 2 * once, rtol=1e-12)  # type: ignore[union-attr]
