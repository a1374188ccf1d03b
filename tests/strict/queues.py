"""Queues that carry operations out in order, each on a thread of its own."""

from __future__ import annotations

import os
import queue
import random
import threading
import time

from tests.strict.work import Pending

LONGEST_S = 0.003
"""Of a delay before an operation starts."""


class Queue:
    """Runs one operation after the other."""

    def __init__(self, name: str) -> None:
        self._entries: queue.SimpleQueue[Pending | None] = queue.SimpleQueue()
        seed = f"{os.environ.get('AUTOPAR_STRICT_SEED', '0')} {name}"
        self._random = random.Random(seed)
        self._thread = threading.Thread(target=self._work, name=f"strict {name}", daemon=True)
        self._thread.start()

    def put(self, entry: Pending) -> Pending:
        """Add an operation; return it."""
        self._entries.put(entry)
        return entry

    def stop(self) -> None:
        """End the thread behind what is in the queue."""
        self._entries.put(None)

    def _work(self) -> None:
        while (entry := self._entries.get()) is not None:
            if self._random.random() < 0.3:
                time.sleep(self._random.uniform(0.0, LONGEST_S))
            entry.carry_out()
