"""Independent pieces of planning, by as many processes of this machine as there are cores.

A forked process starts with all that this one knows, so only what it finds is sent.  Where a fork is not
safe (CUDA is in use, the process may have no children, the system does not fork), or where
AUTOPAR_PROCESSES=1 says so, this process does everything itself, with the same answers.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Generic, Self, TypeVar

import torch

from autopar.errors import AutoparError, InputError

SWITCH = "AUTOPAR_PROCESSES"
MOST = 8
"""Each has its own copy of what it touches of its parent's memory."""
NUMBER = 4
"""Bytes of an item's number in a queue."""
T = TypeVar("T")
R = TypeVar("R")
Answer = tuple[Exception | None, Any]
"""What was raised, or what was found."""


class Aside(Generic[R]):
    """A call that another process answers meanwhile; where none may, this one does when it is asked."""

    helping = 0

    def __init__(self, call: Callable[[], R]) -> None:
        """`call` runs with what this process knows now; its answer is pickled."""
        self._call = call
        self._helper: Any = None
        if _idle():
            context = multiprocessing.get_context("fork")
            self._answers, theirs = context.Pipe(duplex=False)
            self._helper = context.Process(target=_help, args=(call, theirs), daemon=True)
            self._helper.start()
            theirs.close()  # so that a process that dies is heard as the end of its answers
            Aside.helping += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def result(self) -> R:
        """The answer, once; raise what the call raised."""
        if self._helper is None:
            return self._call()
        try:
            error, found = self._answers.recv()
        except EOFError:
            self._helper.join()
            raise AutoparError(
                f"A process that planned a part of the model ended with exit code "
                f"{self._helper.exitcode} before it was done. Was memory short? Set {SWITCH}=1 to plan "
                "in one process."
            ) from None
        finally:
            self.stop()
        if error is not None:
            raise error
        result: R = found
        return result

    def stop(self) -> None:
        """End the other process, wherever it is."""
        if self._helper is not None and not self._answers.closed:
            self._answers.close()
            self._helper.kill()
            self._helper.join()
            Aside.helping -= 1


def side_by_side(answer: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """`[answer(item) for item in items]`; whoever is free takes the next item.  Answers are pickled.

    Raise what the first item that failed raised.
    """
    helpers = min(_idle(), len(items) - 1)
    if helpers < 1:
        return [answer(item) for item in items]
    with _numbers(len(items)) as queue:
        here = os.getpid()
        started = [Aside(lambda: _answers(answer, items, queue, here)) for _ in range(helpers)]
        try:
            found = _answers(answer, items, queue, here)
            for helper in started:
                found |= helper.result()
        finally:
            for helper in started:
                helper.stop()
    failed = min((at for at, (error, _) in found.items() if error is not None), default=None)
    if failed is not None:
        error, _ = found[failed]
        assert error is not None
        raise error
    return [found[at][1] for at in range(len(items))]


def _idle() -> int:
    """Processes that may be started: one per core that nothing here uses yet."""
    may_fork = (
        sys.platform == "linux"
        and not multiprocessing.current_process().daemon
        and not torch.cuda.is_initialized()
    )
    return max(0, _asked() - 1 - Aside.helping) if may_fork else 0


def _asked() -> int:
    """Processes in all: of the environment, or a few."""
    said = os.environ.get(SWITCH)
    if said is None:
        return min(MOST, len(os.sched_getaffinity(0)))
    if not said.isdecimal() or int(said) < 1:
        raise InputError(f"{SWITCH}={said!r} is no number of processes: set it to 1 or more.")
    return int(said)


@contextmanager
def _numbers(count: int) -> Iterator[int]:
    """A pipe that holds the numbers from 0 on: whoever reads one of them takes it."""
    queue, end = os.pipe()
    os.write(end, b"".join(at.to_bytes(NUMBER) for at in range(count)))
    os.close(end)
    try:
        yield queue
    finally:
        os.close(queue)


def _answers(
    answer: Callable[[T], R], items: Sequence[T], queue: int, asking: int
) -> dict[int, Answer]:
    """Of items that this process took while the one that asks lives; the last may have failed."""
    found: dict[int, Answer] = {}
    while asking in (os.getpid(), os.getppid()) and (number := os.read(queue, NUMBER)):
        at = int.from_bytes(number)
        found[at] = _answered(lambda at=at: answer(items[at]))  # type: ignore[misc]
        if found[at][0] is not None:
            os.read(queue, NUMBER * len(items))  # nobody needs the rest
    return found


def _answered(call: Callable[[], Any]) -> Answer:
    try:
        return None, call()
    except Exception as error:
        return error, None


def _help(call: Callable[[], Any], answers: Connection) -> None:
    """What a forked process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asked is interrupted, and ends this
    gc.disable()
    torch.set_num_threads(1)  # threads of a pool are not forked
    error, found = _answered(call)
    if error is not None:
        error.add_note("".join(traceback.format_exception(error)))
    answers.send((error, found))
