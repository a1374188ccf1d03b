"""Reads text files given by users, with a size limit and without blocking."""

from __future__ import annotations

import os
import stat
from pathlib import Path

MOST_NBYTES = 2**28
"""Size limit, far beyond any plan or profile; a device such as /dev/zero never ends."""


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
    if len(content) > MOST_NBYTES:
        raise ValueError(f"it has more than {MOST_NBYTES} bytes")
    return content.decode("utf-8-sig")
