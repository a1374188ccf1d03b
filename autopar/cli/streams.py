"""Where a terminal or file takes no UTF-8, what is drawn is drawn with other characters."""

from __future__ import annotations

import codecs
import contextlib
import sys
from io import TextIOWrapper

LIKE = str.maketrans("µ·─│└├◆▁▂▃▄▅▆▇█", "u.-|`|*12345678")
"""Waits, trees and levels of memory still tell what they should."""


def lenient() -> None:
    """From here on nothing that is printed cannot be encoded."""
    codecs.register_error("autopar", _like)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Python asks where it stands, which a pipe that took a file's place cannot say.
            with contextlib.suppress(OSError):
                stream.reconfigure(errors="autopar")


def _like(error: UnicodeError) -> tuple[str, int]:
    """A character that looks like it, or a question mark."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(LIKE)
    return text.encode("ascii", "replace").decode(), error.end
