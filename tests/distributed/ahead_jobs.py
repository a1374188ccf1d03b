"""What every rank does where weights are gathered one block ahead."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch

from autopar.runtime.ahead import Ahead
from autopar.runtime.late import Lane, Pending
from autopar.runtime.parallel import Parallel
from autopar.runtime.reducer import Reducer
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


def evaluated(work: parity.Work) -> None:
    """Behind a failed forward and an evaluation, the same backward twice is twice the gradient."""
    parallel, case = parity.parallel_of(work), parity.reference(work.name)
    with _failing(Ahead, "take", 2), pytest.raises(Stopped):
        parallel(**case.inputs)
    with torch.no_grad():
        parallel(**case.inputs)
    loss = parallel(**case.inputs)
    parity.close(loss.detach(), case.losses[0], "loss", tolerance=case.tolerance)
    loss.backward(retain_graph=True)
    once = _gradients(parallel)
    loss.backward()
    _compare(parallel, {name: 2 * gradient for name, gradient in once.items()})


def failed(work: parity.Work) -> None:
    """A backward that fails while gradients are on their way leaves none of them."""
    parallel, inputs = parity.parallel_of(work), parity.reference(work.name).inputs
    parallel(**inputs).backward()
    once = _gradients(parallel)
    for calls in (1, 2, 3):
        parallel.zero_grad()
        with _failing(Lane, "enter", calls), pytest.raises(Stopped):
            parallel(**inputs).backward()
        parallel(**inputs).backward()
        _compare(parallel, once)


def accumulated(work: parity.Work) -> None:
    """Three backwards, two of them within `no_sync`; then with anomaly detection, which reads all."""
    parallel, inputs = parity.parallel_of(work), parity.reference(work.name).inputs
    parallel(**inputs).backward()
    once = _gradients(parallel)
    parallel.zero_grad()
    with parallel.no_sync():
        for _ in range(2):
            parallel(**inputs).backward()
    parallel(**inputs).backward()
    _compare(parallel, {name: 3 * gradient for name, gradient in once.items()})
    parallel.zero_grad()
    with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("ignore")
        parallel(**inputs).backward()
    _compare(parallel, once)


def waits(work: parity.Work) -> list[str]:
    """What waits for each reduction of the gradients: the next one of its loop, or the end."""
    parallel, inputs = parity.parallel_of(work), parity.reference(work.name).inputs
    events: list[str] = []
    wait, enter, finish = Pending.wait, Lane.enter, Reducer._finish
    within = "else"

    def said_wait(self: Pending) -> None:
        if self._wait is not None:
            events.append(within)
        wait(self)

    def said(what: str, call: Any) -> Any:
        def inside(self: Any) -> None:
            nonlocal within
            within = what
            call(self)
            within = "else"

        return inside

    with (
        mock.patch.object(Pending, "wait", said_wait),
        mock.patch.object(Lane, "enter", said("next", enter)),
        mock.patch.object(Reducer, "_finish", said("end", finish)),
    ):
        parallel(**inputs).backward()
    return events


def _gradients(parallel: Parallel) -> dict[str, torch.Tensor]:
    return {
        name: parameter.grad.to_local().clone()  # type: ignore[attr-defined]
        for name, parameter in parallel.named_parameters()
        if parameter.grad is not None
    }


def _compare(parallel: Parallel, wanted: dict[str, torch.Tensor]) -> None:
    found = _gradients(parallel)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-12, msg=name)


@contextmanager
def _failing(kind: type, name: str, at: int) -> Iterator[None]:
    """Let the call of this number fail."""
    calls, method = 0, getattr(kind, name)

    def fails(self: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise Stopped
        return method(self)

    with mock.patch.object(kind, name, fails):
        yield
