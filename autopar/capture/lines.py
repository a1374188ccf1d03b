"""Finds the user's line that changes a value, by running the code again line by line."""

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
    """Return whether a file belongs neither to torch, to this package nor to the standard library."""
    if file.startswith(("<frozen", *_torch.TORCH_FOLDERS)):
        return False
    return any(part in file for part in INSTALLED) or not file.startswith(STDLIB)


class Line:
    """Finds the first line after which `look` returns another value."""

    def __init__(self, look: Callable[[], Any]) -> None:
        self._look = look
        self._before = look()
        self._last: Origin | None = None
        self.found: Origin | None = None

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Within the context, trace the user's lines."""
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
