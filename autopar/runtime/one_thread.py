"""Refuses calls of parallel models in two threads at once.

Their collectives would run in another order on each rank, and be matched with each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch.distributed as dist

from autopar.errors import InputError
from autopar.runtime.failure_watchdog import report

P = ParamSpec("P")
R = TypeVar("R")
_BUSY = threading.RLock()
_holder = ["", ""]
"""The thread that is in a call, and the call."""


@contextmanager
def only(call: str) -> Iterator[None]:
    """Raise `InputError` while another thread is in a call of a parallel model; calls may nest."""
    if dist.get_world_size() == 1:
        yield
        return
    if not _BUSY.acquire(blocking=False):
        message = (
            f"Thread {threading.current_thread().name!r} calls {call} of a parallel model while "
            f"thread {_holder[0]!r} is in {_holder[1]}. Ranks would mix up the messages of the two "
            "calls, also of two models. Call parallel models from one thread at a time, in the same "
            "order on every rank; a lock gives each rank an order of its own."
        )
        report(message)  # the other ranks wait for this call
        raise InputError(message)
    try:
        _holder[:] = threading.current_thread().name, call
        yield
    finally:
        _BUSY.release()


def in_one_thread(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate a method of a parallel model that only one thread may be in."""
    name = f"{method.__name__}()"

    @wraps(method)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        with only(name):
            return method(*args, **kwargs)

    return alone
