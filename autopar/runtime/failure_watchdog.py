"""Reports a rank's failure to the other ranks, which end with its message instead of hanging.

The first failure is written to the store, and so is the number of calls that a rank had made when it
ended.  `autopar.runtime.watcher` reads both on every other rank.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from contextlib import suppress
from types import TracebackType

import torch.distributed as dist

from autopar.errors import RankFailedError
from autopar.runtime import launch, limits
from autopar.runtime.launch import Launch
from autopar.runtime.watcher import DONE, LEFT, Watcher, early_of, failure, say

LOST = (
    "Connection closed by peer", "Connection reset by peer", "Broken pipe", "Connection refused",
    "Connection was likely closed", "remote process exited",
)  # fmt: skip
"""Errors of a rank whose peer has ended: it did not fail first."""
CAUSE_S = 4.0
"""Seconds such a rank waits to learn which peer failed."""
LINGER_S = 5.0
"""Seconds rank 0, if it hosts the store, waits at its end until the others have read the outcome."""


class _Watch:
    """One per process: the hook that reports this rank's failure, and the watcher of the others."""

    def __init__(self) -> None:
        self._watcher: Watcher | None = None
        self._pid = 0
        self._gone: set[str] = set()

    @property
    def watcher(self) -> Watcher | None:
        """The watcher, in the process that started it; None in a fork."""
        return self._watcher if self._pid == os.getpid() else None

    def start(self) -> None:
        """Watch the default group; a second call for the same group changes nothing."""
        here = launch.current()
        if self.watcher is not None and self.watcher.launch is here:
            return
        if self._pid != os.getpid():
            self._report, self._pid = sys.excepthook, os.getpid()
            sys.excepthook = self._failed
            launch.at_end(self.leave)
        elif self.watcher is not None:
            self.watcher.stop()
            self.has_left(self.watcher.launch)
        self._watcher = Watcher(here, limits.heartbeat_s(), self.has_left)
        self._watcher.start()

    def leave(self) -> None:
        """Report at the end of the process that this rank has ended, with its error if there is one."""
        watcher = self.watcher
        if watcher is None:
            return
        error = _unreported()
        if error is not None and not watcher.failing and not watcher.launch.is_over:
            self._publish(watcher, error)
        watcher.stop()
        self.has_left(watcher.launch)

    def has_left(self, here: Launch) -> None:
        """Write once that this rank makes no more calls, and how many it has made."""
        if here.name in self._gone or here.pid != os.getpid():
            return
        self._gone.add(here.name)
        if self._watcher is not None and self._watcher.launch is here and self._watcher.lost:
            return
        with suppress(Exception):  # the store's host may have ended first
            store = here.store
            store.set(f"{LEFT}/{here.rank}", str(here.calls.count))
            store.add(LEFT, 1)
            if here.rank != 0:
                store.add(DONE, 1)
            elif here.dies_with_first_rank:
                until = time.monotonic() + LINGER_S
                while store.add(DONE, 0) < here.size - 1 and time.monotonic() < until:
                    time.sleep(0.02)

    def _failed(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Exception hook: publish this rank's failure, or print the one that came first."""
        watcher = self.watcher
        over = watcher is None or watcher.launch.is_over
        other = None if over or watcher is None else self._publish(watcher, error)
        self._report(kind, error, trace)
        if other is not None:
            say(other)
        sys.stderr.flush()

    @staticmethod
    def _publish(watcher: Watcher, error: BaseException) -> dict[str, object] | None:
        """Write this failure if it is the first; return what is to be said besides this rank's error."""
        watcher.failing = True
        text = "".join(traceback.format_exception_only(error)).strip()
        rank = watcher.launch.rank
        found = failure(rank, text)
        if any(sign in text for sign in LOST):
            found = watcher.cause(CAUSE_S) or failure(
                rank,
                f"it was the first to lose its connection to another rank, which ended without a "
                f"message (killed, out of memory, or by sys.exit): {text}",
            )
        first = watcher.publish(found)
        return None if first == failure(rank, text) else first


def _unreported() -> BaseException | None:
    """Return the error that ended this process if another hook handled it (multiprocessing's does)."""
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if isinstance(error, SystemExit):
        return error.__context__ if error.code not in (None, 0) else None
    return error


_watch = _Watch()


def refuse_left(call: str) -> None:
    """Raise `RankFailedError` if a rank has ended before this call."""
    watcher = _watch.watcher
    if watcher is None:
        return
    for rank, count in watcher.left.items():
        if count < watcher.launch.calls.count:
            text = early_of(watcher, rank)
            raise RankFailedError(f"{text[0].upper()}{text[1:]} The call is {call}.")


def has_left(here: Launch, rank: int) -> bool:
    """Whether that rank makes no more calls; true of all ranks once the store has no host."""
    watcher = _watch.watcher
    if watcher is not None and watcher.launch is here and (watcher.lost or rank in watcher.left):
        return True
    return bool(here.store.check([f"{LEFT}/{rank}"]))


def report(message: str) -> None:
    """Tell the other ranks that this one failed, whether or not its error is caught here."""
    watcher = _watch.watcher
    if watcher is not None and not watcher.launch.is_over:
        watcher.publish(failure(watcher.launch.rank, message))


def watch() -> None:
    """Report this process's failure to the other ranks, and end when one of them fails."""
    if dist.get_world_size() > 1 and not launch.alone():
        _watch.start()


def _say_goodbye(pid: int = os.getpid()) -> None:
    """At the end of a process that never called autopar, release the ranks that wait for it there."""
    with suppress(Exception):
        if pid == os.getpid() and launch.known() is None and launch.reachable():
            launch.say_goodbye(_watch.has_left)


launch.at_end(_say_goodbye)
