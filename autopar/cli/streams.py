"""Replaces characters that the output's encoding lacks by similar ones."""

from __future__ import annotations

import codecs
import contextlib
import sys
from io import TextIOWrapper

LIKE = str.maketrans("µ·─│└├◆▁▂▃▄▅▆▇█", "u.-|`|*12345678")
"""Replacements that keep timelines, trees and memory levels readable."""


def lenient() -> None:
    """Replace characters that cannot be encoded on standard output and error from now on."""
    codecs.register_error("autopar", _like)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Python queries the stream's position, which fails on a pipe that has replaced a file.
            with contextlib.suppress(OSError):
                stream.reconfigure(errors="autopar")


def _like(error: UnicodeError) -> tuple[str, int]:
    """Return similar characters, or question marks, and the position after them."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(LIKE)
    return text.encode("ascii", "replace").decode(), error.end
