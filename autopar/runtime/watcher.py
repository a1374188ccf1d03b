"""Two threads on every rank that detect ranks which failed, ended, or were stopped.

The talk thread uses the store: it reads the first failure and the ranks that have ended, and answers
ranks that wait for this one.  The look thread never uses it, as a store whose host is stopped does not
answer.  It checks the processes of this machine, and how long the talk thread has been blocked.  Only
time in which this rank itself ran is counted, so that a machine that sleeps or a rank that is stopped
for a while causes no false alarm.

The threads are stopped before the interpreter ends.  A thread that returns from the store into an
interpreter that shuts down is ended by Python from inside C++, which aborts the process.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from autopar.runtime.launch import Launch, forget, from_launcher
from autopar.runtime.peers import ENDED, STOPPED
from autopar.runtime.stalls import Stalls

KEY, LEFT, DONE = "failed", "left", "done"
"""Keys: first failure; calls of an ended rank; number of ranks that no longer need rank 0's store."""
POLL_S, GRACE_S = 0.5, 3.0
GONE_S = 1.5
"""Seconds between the end of a process and its report as failed, unless the store has a reason."""
STOP_S = 10.0
"""Seconds that the end of the process waits for each thread to finish its last request."""
REMOTE = 5.0
"""Factor on the limit for ranks on other machines, of which only heartbeats in the store are visible."""
SWITCH = "AUTOPAR_HEARTBEAT_S sets this limit, and 0 switches it off."
Failure = dict[str, Any]
"""``{"rank", "message"}``."""


class Watcher:
    """One rank's view of the others, kept up to date by two threads."""

    def __init__(self, launch: Launch, limit_s: float, leave: Callable[[Launch], None]) -> None:
        self.launch, self.left, self.failing = launch, dict[int, int](), False
        self.found: Failure | None = None
        self.lost = False
        self._limit_s, self._leave = limit_s, leave
        self._store, self._last_words = launch.connection(), launch.connection()
        self._over = threading.Event()
        self._stalls = Stalls(launch)
        self._waited: dict[tuple[str, int], float] = {}
        self._talked = self._beats = self._beat_seen = 0
        self._talking, self._talked_seen = False, -1
        self._threads = [
            threading.Thread(target=work, daemon=True, name=f"autopar-{name}")
            for name, work in (("talk", self._talk), ("look", self._look))
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads, and wait up to `STOP_S` for each to return from the store."""
        self._over.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(STOP_S)

    def _talk(self) -> None:
        while not self._over.wait(POLL_S):
            if self.launch.is_over:
                self._over.set()
                self._leave(self.launch)
                forget(self.launch)
                return
            self._talking = True
            try:
                found = self._news()
            except Exception:
                self.lost = True
                found = self._of_lost_store()
            self._talking = False
            self._talked += 1
            if found is not None:
                self._end(found)
            if self.lost or self.found:
                return

    def _news(self) -> Failure | None:
        """Exchange news with the store; return a failure if there is one."""
        if self._store.check([KEY]):
            found: Failure = json.loads(self._store.get(KEY).decode())
            self._done()
            return found
        self._read_left()
        self._answer()
        self.launch.meet_peers(self._store)
        stall = self._stalls.found(self._store)
        return self._of_left() or self._of_silent() or (failure(None, stall) if stall else None)

    def _read_left(self) -> None:
        if self._store.add(LEFT, 0) == len(self.left):
            return
        for rank in set(range(self.launch.size)) - self.left.keys():
            if self._store.check([f"{LEFT}/{rank}"]):
                self.left[rank] = int(self._store.get(f"{LEFT}/{rank}"))
        if 0 in self.left:
            self._done()
            self.lost = self.launch.dies_with_first_rank  # the store may end at any time

    def _done(self) -> None:
        if not self._waited.get((DONE, 0)):
            self._waited[DONE, 0] = 1.0
            self._store.add(DONE, 1)

    def _answer(self) -> None:
        """Write this rank's position if a waiting rank requested it."""
        ask = f"ask/{self.launch.rank}"
        if self._store.check([ask]):
            self._store.delete_key(ask)
            calls = self.launch.calls
            status: dict[str, Any] = {
                "number": self._talked,
                "calls": calls.recent,
                "place": calls.place(),
            }
            status["loops"] = self._stalls.status()
            self._store.set(f"status/{self.launch.rank}", json.dumps(status))

    def _of_left(self) -> Failure | None:
        """Return the failure of a rank that ended before this rank's current call.

        It must last for `GRACE_S`, so that an error of this rank comes first.
        """
        calls = self.launch.calls.count
        for rank, count in self.left.items():
            if self._lasts(("left", rank), POLL_S, count < calls, GRACE_S):
                return failure(rank, early(rank, count, calls))
        return None

    def _of_silent(self) -> Failure | None:
        """Return the failure of the next rank on another machine, if it has no heartbeat.

        Every such rank is the next of some other, so that all are watched.
        """
        if all(peer.is_near for peer in self.launch.peers.values()) or not self._limit_s:
            return None
        rank, size = self.launch.rank, self.launch.size
        self._beats += 1
        self._store.set(f"beat/{rank}", str(self._beats))
        others = [(rank + step) % size for step in range(1, size)]
        far = [r for r in others if r not in self.left and not self.launch.peers[r].is_near]
        if not far or not self._store.check([f"beat/{far[0]}"]):
            return None
        beat = int(self._store.get(f"beat/{far[0]}"))
        silent, self._beat_seen = beat == self._beat_seen, beat
        if not self._lasts(("silent", far[0]), POLL_S, silent, REMOTE * self._limit_s):
            return None
        return failure(
            far[0],
            f"{self.launch.peers[far[0]]} gave no sign of life for {REMOTE * self._limit_s:g} s: it is "
            f"stopped, or its machine or network is down. {SWITCH}",
        )

    def _of_lost_store(self) -> Failure | None:
        """Return the failure of the store's host if it ended; None if it ended in the normal way."""
        if self.launch.is_over or (self.left and not from_launcher()):
            return None
        if from_launcher():
            return failure(None, "The launcher, which keeps the store of the ranks, has ended.")
        host = self.launch.peers.get(0)
        if host is None or not host.is_near:
            return None
        # The kernel closes the sockets of a process long before it has ended, on a busy machine.
        until = time.monotonic() + GRACE_S
        while host.state() not in ENDED:
            if time.monotonic() > until or self._over.wait(POLL_S / 10):
                return None  # it destroyed its group, and the store with it
        return failure(0, f"{host} {ENDED_SILENTLY}")

    def _look(self) -> None:
        last = time.monotonic()
        while not self._over.wait(POLL_S):
            now = time.monotonic()
            passed, last = min(now - last, 2 * POLL_S), now
            if self.lost:
                return
            found = self._of_peers(passed) or self._of_waiting(passed)
            if found is not None:
                self._end(found)
                return

    def _of_peers(self, passed: float) -> Failure | None:
        for rank, peer in self.launch.peers.items():
            if not peer.is_near or rank in self.left:
                continue
            state = peer.state()
            # A child that outlives the store's host holds its sockets: requests are not answered.
            may_have_reason = self._talking and not (rank == 0 and self.launch.dies_with_first_rank)
            if self._lasts(("gone", rank), passed, state in ENDED, GONE_S) and not may_have_reason:
                return failure(rank, f"{peer} {ENDED_SILENTLY}")
            stopped = state == STOPPED and self._limit_s > 0
            if self._lasts(("stopped", rank), passed, stopped, self._limit_s):
                return failure(
                    rank,
                    f"{peer} has been stopped for {self._limit_s:g} s (SIGSTOP, Ctrl-Z). {SWITCH}",
                )
        return None

    def _of_waiting(self, passed: float) -> Failure | None:
        """Return the failure of a store that does not answer the talk thread."""
        before, self._talked_seen = self._talked_seen, self._talked
        stuck = self._talking and before == self._talked and self._limit_s > 0
        if not self._lasts(("store", 0), passed, stuck, self._limit_s):
            return None
        host = "torchrun" if from_launcher() else "usually rank 0"
        return failure(
            None,
            f"The store of the ranks has not answered for {self._limit_s:g} s: the process that keeps "
            f"it ({host}) is stopped or cannot be reached. {SWITCH}",
        )

    def _lasts(self, what: tuple[str, int], passed: float, holds: bool, limit_s: float) -> bool:
        """Whether a condition has held for more than `limit_s` seconds."""
        if not holds:
            self._waited.pop(what, None)
            return False
        self._waited[what] = self._waited.get(what, 0.0) + passed
        return self._waited[what] > limit_s

    def _end(self, found: Failure) -> None:
        """End this process with another rank's failure, unless it fails itself within `GRACE_S`."""
        if self.found is None:
            self.found = found
        if not self.failing:
            publishing = threading.Thread(target=self.publish, args=(found,), daemon=True)
            publishing.start()
            publishing.join(GRACE_S)
        if not self._over.wait(GRACE_S) and not self.failing:
            say(self.found)
            os._exit(1)

    def publish(self, found: Failure) -> Failure:
        """Write a failure if it is the first; return the first one."""
        with suppress(Exception):  # the store died with its host
            first = self._last_words.compare_set(KEY, "", json.dumps(found))
            found = json.loads(first.decode())
        return found

    def cause(self, seconds: float) -> Failure | None:
        """Return the failure behind a lost connection, waiting up to `seconds` for the threads.

        A process that has ended for `GONE_S` is the cause, if the threads have not seen it yet.
        """
        until = time.monotonic() + seconds
        ended: dict[int, float] = {}
        while self.found is None and time.monotonic() < until:
            for rank, peer in self.launch.peers.items():
                if not peer.is_near or rank in self.left or peer.state() not in ENDED:
                    continue
                if time.monotonic() - ended.setdefault(rank, time.monotonic()) > GONE_S:
                    return failure(rank, f"{peer} {ENDED_SILENTLY}")
            early = [rank for rank, n in self.left.items() if n < self.launch.calls.count]
            if early:
                return failure(early[0], early_of(self, early[0]))
            time.sleep(0.05)
        return self.found


ENDED_SILENTLY = (
    "ended without a message: killed (kill -9, out of memory, SIGTERM), or by os._exit."
)


def failure(rank: int | None, message: str) -> Failure:
    """Return the record of a failure."""
    return {"rank": rank, "message": message}


def early(rank: int, count: int, calls: int) -> str:
    """Return the message for a rank that ended without an error."""
    return (
        f"rank {rank} ended after {count} calls of its parallel models, while this rank is in "
        f"call {calls}. Give every rank the same number of steps (as DistributedSampler and "
        "drop_last=True do), and let each rank end after the last of them."
    )


def early_of(watcher: Watcher, rank: int) -> str:
    """Return the same message with the counts of a watcher."""
    return early(rank, watcher.left[rank], watcher.launch.calls.count)


def say(found: Mapping[str, Any]) -> None:
    """Print a failure and its rank to stderr."""
    whose = "" if found["rank"] is None else f"rank {found['rank']} failed first: "
    print(f"autopar: {whose}{found['message']}", file=sys.stderr, flush=True)
