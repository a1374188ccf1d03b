"""Prints a progress line every ten seconds to pipes and log files, where no progress bar is shown."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
EVERY_S = 10.0


@dataclass
class Work:
    """A task in progress and its start time."""

    what: str
    done: str = ""
    began: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        return f"{self.what}{self.done}, {time.monotonic() - self.began:.0f} s"


_DOING: list[Work] = []
"""Tasks in progress, outermost first; only the innermost is reported."""


@contextmanager
def reporting(what: str) -> Iterator[Work]:
    """Within the context, report the task on standard error; of several ranks only rank 0 does."""
    work = Work(what)
    _DOING.append(work)
    ended = threading.Event()
    if len(_DOING) == 1 and os.environ.get("RANK", "0") == "0":
        threading.Thread(target=_tell, args=(ended,), daemon=True).start()
    try:
        yield work
    finally:
        ended.set()
        _DOING.remove(work)


def counted(every: Iterable[T], total: int | None, what: str) -> Iterator[T]:
    """Yield the items unchanged and report their number."""
    with reporting(what) as work:
        for count, each in enumerate(every, 1):
            yield each
            work.done = f": {count}" + (f" of {total}" if total else "")


def _tell(ended: threading.Event) -> None:
    while not ended.wait(EVERY_S):
        for work in _DOING[-1:]:
            print(f"{work} ...", file=sys.stderr, flush=True)
