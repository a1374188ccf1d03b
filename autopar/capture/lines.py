"""The line of the user's at which something changes, found by running it once more, line by line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from autopar.capture import _torch
from autopar.capture.where import origin_at, users_frame
from autopar.ir.graph import Origin

STDLIB = tuple({sys.modules["contextlib"].__file__.rpartition("/")[0] + "/"})  # type: ignore[union-attr]
INSTALLED = ("/site-packages/", "/dist-packages/")


def is_users(file: str) -> bool:
    """Whether a file is neither torch's, ours, nor the standard library's."""
    if file.startswith(("<frozen", *_torch.TORCH_FOLDERS)):
        return False
    return any(part in file for part in INSTALLED) or not file.startswith(STDLIB)


class Line:
    """The first line after which `look` gives something else."""

    def __init__(self, look: Callable[[], Any]) -> None:
        self._look = look
        self._before = look()
        self._last: Origin | None = None
        self.found: Origin | None = None

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Within, the user's lines are followed."""
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        if self.found is not None or not is_users(frame.f_code.co_filename):
            return None
        return self._at

    def _at(self, frame: FrameType, event: str, arg: Any) -> Any:
        if self.found is not None:
            return None
        if event in ("line", "return"):
            if self._look() != self._before:
                self.found = self._last or origin_at(frame)
                return None
            here = frame if event == "line" else users_frame(frame.f_back)
            self._last = origin_at(here)
        return self._at
