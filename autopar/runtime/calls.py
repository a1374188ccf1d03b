"""Counts the calls that all ranks have to make in the same order: steps, evaluations, checkpoints."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from pathlib import Path
from types import FrameType

import torch.distributed as dist

KEPT = 16
"""Number of recent calls that are sent to another rank."""
C10D = "torch/distributed/distributed_c10d.py"
OURS = (
    str(Path(__file__).parent.parent) + os.sep,
    str(Path(dist.__file__).parent.parent.parent) + os.sep,
    str(Path(threading.__file__).parent) + os.sep,
)
"""Folders of code that is not the user's: autopar, installed packages, the standard library."""


class Calls:
    """The calls of this rank since its group began."""

    def __init__(self) -> None:
        self.count = 0
        self._recent: deque[tuple[int, str]] = deque(maxlen=KEPT)
        self._thread = threading.main_thread().ident

    def note(self, name: str) -> bool:
        """Record a call; return whether its name differs from the last one's."""
        changed = not self._recent or self._recent[-1][1] != name
        self.count += 1
        self._recent.append((self.count, name))
        self._thread = threading.get_ident()
        return changed

    @property
    def recent(self) -> list[tuple[int, str]]:
        """Numbers and names of the last `KEPT` calls."""
        return list(self._recent)

    def place(self) -> tuple[str, str]:
        """Return the user's current line in the thread of the last call.

        The second value is the collective of all ranks that the user called there, "" if none.
        """
        frame = sys._current_frames().get(self._thread or 0)
        collective = ""
        while frame is not None:
            name = frame.f_code.co_filename
            if name.endswith(C10D) and _is_of_all(frame):
                collective = f"torch.distributed.{frame.f_code.co_name}"
            elif not name.startswith((*OURS, "<")):
                return f"{name}:{frame.f_lineno}", collective
            frame = frame.f_back
        return "", collective


def _is_of_all(frame: FrameType) -> bool:
    """Whether a call of torch.distributed uses the default group."""
    return frame.f_locals.get("group", frame) in (None, dist.group.WORLD)
