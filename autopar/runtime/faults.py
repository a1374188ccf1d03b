"""A rank that fails takes the others down with its message; nothing hangs.

The first failure is written to the store.  A thread on every rank looks for it and, when another rank
has failed, gives the main thread a moment to fail by itself (its collective is usually cut off),
then ends the process with the first rank's message.

The thread is stopped before the interpreter ends.  A thread that comes back from the store into an
interpreter that is going down is ended by Python from inside C++, and takes the process with it.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import traceback
from contextlib import suppress
from types import TracebackType
from typing import Any

import torch.distributed as dist

from autopar.runtime import _torch

KEY = "autopar/failed"
LEFT = "autopar/left"
"""Under it, the numbers of ranks that have ended, however they did."""
POLL_S, GRACE_S = 0.5, 3.0
LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
"""What a rank raises whose peer has gone: it did not fail first."""
STOP_S = 10.0
"""How long the end of the process waits for the thread's last question to the store."""


class _Watch:
    """One per process: the hook that reports this rank's failure, and the thread that looks."""

    def __init__(self) -> None:
        self._store: Any = None
        self._rank = 0
        self._over = threading.Event()
        self._thread = threading.Thread()

    def start(self) -> None:
        """Watch the default group; a second call for the same group changes nothing."""
        store = _torch.store()
        if store is self._store:
            return
        if self._store is None:
            self._report = sys.excepthook
            sys.excepthook = self._failed
            atexit.register(self.leave)
        else:
            self.stop()
        self._store, self._rank, self._over = store, dist.get_rank(), threading.Event()
        self._thread = threading.Thread(target=self._look, args=(store, self._over), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait until it has left the store."""
        self._over.set()
        self._thread.join(STOP_S)

    def leave(self) -> None:
        """The process ends: nobody needs to wait for this rank any more."""
        self.stop()
        with suppress(Exception):  # the store's host may have left before
            self._store.set(f"{LEFT}/{self._rank}", "")

    def _failed(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """This rank ends with an exception: say so to the others, or say who was first."""
        text = "".join(traceback.format_exception_only(kind, error)).strip()
        other = self._publish(text)
        self._report(kind, error, trace)
        if other is not None:
            _say(other)
        sys.stderr.flush()

    def _publish(self, text: str) -> dict[str, Any] | None:
        """Write this failure if it is the first; else give the first one."""
        mine = json.dumps({"rank": self._rank, "message": text})
        try:
            first = self._store.compare_set(KEY, "", mine).decode()
        except Exception:
            # The store died with its host; the traceback is all there is to say.
            return None
        found: dict[str, Any] = json.loads(first)
        return None if found["rank"] == self._rank else found

    def _look(self, store: Any, over: threading.Event) -> None:
        while not over.wait(POLL_S):
            try:
                if not store.check([KEY]):
                    continue
                found: dict[str, Any] = json.loads(store.get(KEY).decode())
            except Exception:
                # The store's host has left; collectives end by themselves when peers leave.
                return
            if found["rank"] != self._rank and not over.wait(GRACE_S):
                _say(found)
                sys.stderr.flush()
                os._exit(1)
            return


def _say(found: dict[str, Any]) -> None:
    message = found["message"]
    if any(sign in message for sign in LOST):
        said = (
            f"rank {found['rank']} was the first to lose its connection to another rank, which ended "
            f"without a message (killed, out of memory, or by sys.exit): {message}"
        )
    else:
        said = f"rank {found['rank']} failed first: {message}"
    print(f"autopar: {said}", file=sys.stderr, flush=True)


_watch = _Watch()


def has_left(rank: int) -> bool:
    """Whether that rank's process has ended."""
    return bool(_torch.store().check([f"{LEFT}/{rank}"]))


def watch() -> None:
    """Report this process' failure to the other ranks, and end when one of them fails."""
    if dist.get_world_size() > 1:
        _watch.start()
