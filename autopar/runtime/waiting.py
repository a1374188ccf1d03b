"""Waits for a value that another rank writes to the store, for as long as it may still come.

A waiting rank asks the other for its position.  A rank that makes another call, or that is in a
collective which needs this rank, will never write the value, and is reported at once.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from autopar.errors import RankFailedError, RankMismatchError
from autopar.runtime import failure_watchdog as faults
from autopar.runtime import limits
from autopar.runtime.launch import Launch

POLL_S = 0.25
"""Longest interval between two polls, in seconds."""
ASK_S, HINT_S = 1.5, 15.0
"""Seconds between two requests for the other's position, and until a hint is printed to stderr."""
CERTAIN = 4
"""Number of answers in a row that must show the other rank in the same collective."""


def written(here: Launch, key: str, rank: int, what: str, arrived: str = "") -> str:
    """Return the value that a rank writes under `key`; raise if it can no longer come.

    The rank has `limits.timeout_s` to write it; once it wrote `arrived`, it may take any time.
    """
    wait = _Wait(here, rank, what)
    while True:
        left = _has_left(here, rank)  # checked first: the rank may write, and then leave
        if _is_written(here, key):
            return str(here.store.get(key).decode())
        if left:
            raise RankFailedError(
                f"Rank {rank} ended before it compared {what}: it failed, or it exited early."
            )
        if wait.seconds > ASK_S:
            wait.ask()
        if wait.seconds > limits.timeout_s() and not (arrived and _is_written(here, arrived)):
            raise RankFailedError(
                f"Rank {rank} did not compare {what} within {limits.timeout_s():g} "
                f"s{wait.where}: it failed, or it does not call autopar where this rank does. "
                "Make the same calls on every rank. AUTOPAR_TIMEOUT_S says how long ranks wait."
            )
        time.sleep(min(POLL_S, 0.001 + wait.seconds / 10))  # store.wait logs warnings


@dataclass
class _Wait:
    """The state of waiting for one rank's value."""

    here: Launch
    rank: int
    what: str
    where: str = ""
    began: float = field(default_factory=time.monotonic)
    _asked: float = 0.0
    _hinted: bool = False
    _seen: tuple[Any, ...] = ()
    _times: int = 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def ask(self) -> None:
        """Ask for the other rank's position every `ASK_S` seconds; raise if it will not come."""
        if time.monotonic() - self._asked < ASK_S:
            return
        self._asked = time.monotonic()
        store = self.here.store
        try:
            if store.check([f"status/{self.rank}"]):
                self._judge(json.loads(store.get(f"status/{self.rank}").decode()))
            store.set(f"ask/{self.rank}", "")
        except RuntimeError:  # the store has no host any more
            return

    def _judge(self, status: dict[str, Any]) -> None:
        mine, calls = self.here.calls.recent, {number: name for number, name in status["calls"]}
        line, collective = status["place"]
        self.where = f" (it is at {line})" if line else ""
        number, name = mine[-1] if mine else (0, "")
        if calls.get(number, name) != name:
            raise self._mismatch(number, name, calls[number])
        if number + 1 in calls:  # a call that comes after this comparison
            raise self._mismatch(number + 1, f"to compare {self.what}", calls[number + 1])
        self._count(status["number"], line, collective)
        if self._times >= CERTAIN:
            raise RankMismatchError(
                f"Rank {self.here.rank} waits for rank {self.rank} to compare {self.what}"
                f"{self._last(mine)}, while rank {self.rank} waits in {collective}() at {line}. All "
                "ranks take part in each call of a parallel model: make it on every rank, not below "
                "`if rank == 0`."
            )
        if self.seconds > HINT_S and not self._hinted:
            self._hinted = True
            print(
                f"autopar: rank {self.here.rank} waits for rank {self.rank} to compare {self.what}"
                f"{self.where}",
                file=sys.stderr,
                flush=True,
            )

    def _count(self, number: int, line: str, collective: str) -> None:
        """Count how often the other rank was seen in the same collective of all ranks."""
        place = (line, collective)
        if not collective or self._seen[1:] != place:
            self._times, self._seen = int(bool(collective)), (number, *place)
        elif self._seen[0] != number:
            self._times, self._seen = self._times + 1, (number, *place)

    def _last(self, mine: list[tuple[int, str]]) -> str:
        return f" ({mine[-1][1]})" if mine else ""

    def _mismatch(self, number: int, name: str, other: str) -> RankMismatchError:
        return RankMismatchError(
            f"Ranks are out of step: call {number} is {name} on rank {self.here.rank}, and "
            f"{other} on rank {self.rank}{self.where}. All ranks take part in each call of a "
            "parallel model: make the same calls, in the same order, on every rank, not below "
            "`if rank == 0`."
        )


def _is_written(here: Launch, key: str) -> bool:
    try:
        return bool(here.store.check([key]))
    except RuntimeError:  # the store has no host any more
        return False


def _has_left(here: Launch, rank: int) -> bool:
    """Whether a rank has ended; once the store has no host, all ranks count as ended."""
    try:
        return faults.has_left(here, rank)
    except RuntimeError:
        return True
