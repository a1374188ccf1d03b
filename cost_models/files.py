"""Reads text files given by users, with a size limit and without blocking."""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from pathlib import Path

MOST_NBYTES = 2**28
"""Size limit, far beyond any plan or profile; a device such as /dev/zero never ends."""

GZIP = b"\x1f\x8b"


def text(path: str | Path) -> str:
    """Return the file's text; raise `OSError` or `ValueError` if it cannot be read.

    A pipe without a writer reads as empty instead of blocking.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        found = os.fstat(handle)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(21, os.strerror(21), str(path))
        os.set_blocking(handle, True)
        content = file.read(MOST_NBYTES + 1)
    if content.startswith(GZIP):
        content = _decompressed(content)
    if len(content) > MOST_NBYTES:
        raise ValueError(f"it has more than {MOST_NBYTES} bytes")
    return content.decode("utf-8-sig")


def _decompressed(content: bytes) -> bytes:
    """Return what was compressed, as far as the size limit; raise `ValueError` if it is damaged."""
    try:
        with gzip.open(io.BytesIO(content)) as file:
            return file.read(MOST_NBYTES + 1)
    except (OSError, EOFError, zlib.error) as reason:
        raise ValueError(f"it is not a whole gzip file ({reason})") from None
