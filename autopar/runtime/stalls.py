"""Finds a rank that waits in a step for a rank that is in a backward which the first never began.

Both wait for ever: the second needs the first one's part of a collective.  This is no guess by time.
What a rank has begun since the last comparison only grows until the next one, so a rank that compares
with less than another has begun differs for certain.
"""

from __future__ import annotations

import json
import time
from typing import Any

from autopar.runtime import limits
from autopar.runtime.launch import Launch


class Stalls:
    """This rank's search for such ranks, while it waits."""

    def __init__(self, launch: Launch) -> None:
        self._launch, self._limit_s = launch, limits.stall_s()
        self._seen: dict[tuple[int, int, int], int] = {}

    def status(self) -> dict[str, Any]:
        """Return how far this rank is in each model, for a rank that waits."""
        return {
            str(key): [loop.share, loop.interval, dict(loop.begun), loop.waits_since is not None]
            for key, loop in list(self._launch.loops.items())
        }

    def found(self, store: Any) -> str:
        """Return the message about a rank that this one waits for in vain; empty if there is none."""
        now = time.monotonic()
        for key, loop in list(self._launch.loops.items()):
            since, interval, begun = loop.waits_since, loop.interval, loop.begun
            if since is None or not self._limit_s or now - since < self._limit_s:
                continue
            for rank in set(range(self._launch.size)) - {self._launch.rank}:
                told = self._asked(store, rank)
                share, there, theirs, waits = told.get("loops", {}).get(
                    str(key), (-1, -1, {}, True)
                )
                more = [kind for kind, count in theirs.items() if count > begun[kind]]
                if share != loop.share or there != interval or waits or not more:
                    continue
                before = self._seen.setdefault((rank, key, interval), told["number"])
                # Still the same wait: the comparison may have ended while the store answered.
                if before != told["number"] and loop.waits_since == since:
                    return self._message(rank, more[-1], told["place"][0])
        return ""

    @staticmethod
    def _asked(store: Any, rank: int) -> dict[str, Any]:
        """Return another rank's last status, and ask for the next."""
        told: dict[str, Any] = {}
        if store.check([f"status/{rank}"]):
            told = json.loads(store.get(f"status/{rank}").decode())
        store.set(f"ask/{rank}", "")
        return told

    def _message(self, rank: int, last: str, there: str) -> str:
        here = self._launch.calls.place()[0]
        return (
            f"Ranks are out of step: rank {self._launch.rank} is in a forward{_at(here)}, while rank "
            f"{rank} is in a {last}{_at(there)} that rank {self._launch.rank} did not make before it. "
            "Each waits for the other. Make the same backwards, clipping and optimizer steps on every "
            "rank; if a value of one rank decides (a loss, a metric), make it equal first: "
            "torch.distributed.all_reduce."
        )


def _at(line: str) -> str:
    return f" at {line}" if line else ""
