"""Runs independent parts of planning in parallel, in forked processes.

A forked process inherits this one's memory, so only its results are sent.  If a fork is not safe (CUDA
is in use, the process is a daemon, the system is not Linux), or with AUTOPAR_PROCESSES=1, this process
does all the work, with the same results.
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
from autopar.utils.forks import threads_allowed

SWITCH = "AUTOPAR_PROCESSES"
MOST = 8
"""Default limit on processes: each copies the pages of its parent's memory that it writes to."""
NUMBER = 4
"""Bytes per item number in the queue."""
T = TypeVar("T")
R = TypeVar("R")
Answer = tuple[Exception | None, Any]
"""The exception raised, or None, and the result."""


class Aside(Generic[R]):
    """A call that runs in a forked process; if no fork is allowed, `result` runs it in this one."""

    helping = 0

    def __init__(self, call: Callable[[], R]) -> None:
        """Start `call` in a fork of this process; its result is pickled."""
        self._call = call
        self._helper: Any = None
        if _idle():
            context = multiprocessing.get_context("fork")
            self._answers, theirs = context.Pipe(duplex=False)
            self._helper = context.Process(target=_help, args=(call, theirs), daemon=True)
            with threads_allowed():
                self._helper.start()
            theirs.close()  # so that the death of the process closes the pipe
            Aside.helping += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def result(self) -> R:
        """Return the result, or raise what the call raised.  May be called once."""
        if self._helper is None:
            return self._call()
        try:
            error, found = self._answers.recv()
        except EOFError:
            self._helper.join()
            raise AutoparError(
                "A process that planned a part of the model ended with exit code "
                f"{self._helper.exitcode} before it was done. Did it run out of memory? Set "
                f"{SWITCH}=1 to plan in one process."
            ) from None
        finally:
            self.stop()
        if error is not None:
            raise error
        result: R = found
        return result

    def stop(self) -> None:
        """Kill the other process if it is still in use."""
        if self._helper is not None and not self._answers.closed:
            self._answers.close()
            self._helper.kill()
            self._helper.join()
            Aside.helping -= 1


def side_by_side(answer: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return `[answer(item) for item in items]`, computed by several processes.

    Each process takes the next item when it is free.  Results are pickled.  Raise the exception of the
    first item that failed.
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
    """Return how many more processes may be started; 0 if forking is not safe."""
    may_fork = (
        sys.platform == "linux"
        and not multiprocessing.current_process().daemon
        and not torch.cuda.is_initialized()
    )
    return max(0, _asked() - 1 - Aside.helping) if may_fork else 0


def _asked() -> int:
    """Return the total number of processes: from the environment, or one per core up to `MOST`."""
    said = os.environ.get(SWITCH)
    if said is None:
        return min(MOST, len(os.sched_getaffinity(0)))
    if not said.isdecimal() or int(said) < 1:
        raise InputError(f"{SWITCH}={said!r} is not a number of processes: set it to 1 or more.")
    return int(said)


@contextmanager
def _numbers(count: int) -> Iterator[int]:
    """Create a pipe with the item numbers 0 to `count` - 1, from which processes take their items."""
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
    """Process items from the queue until it is empty, one fails, or the parent process has ended."""
    found: dict[int, Answer] = {}
    while asking in (os.getpid(), os.getppid()) and (number := os.read(queue, NUMBER)):
        at = int.from_bytes(number)
        found[at] = _answered(lambda at=at: answer(items[at]))  # type: ignore[misc]
        if found[at][0] is not None:
            os.read(queue, NUMBER * len(items))  # the call fails, so skip the other items
    return found


def _answered(call: Callable[[], Any]) -> Answer:
    try:
        return None, call()
    except Exception as error:
        return error, None


def _help(call: Callable[[], Any], answers: Connection) -> None:
    """Run a call in a forked process and send its result."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # the parent is interrupted too, and ends this process
    gc.disable()
    torch.set_num_threads(1)  # a fork does not inherit the threads of a pool
    error, found = _answered(call)
    if error is not None:
        error.add_note("".join(traceback.format_exception(error)))
    answers.send((error, found))
