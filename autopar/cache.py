"""Files that autopar keeps for itself: where they lie, and how they are written whole or not at all."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def write(source: str, path: Path) -> Path:
    """Write a file whole or not at all, for whom the user's umask lets read.

    What is no file, such as ``/dev/null`` or a pipe, is written into, never replaced.
    """
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8") as place:
            place.write(source)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(source)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def cache_directory() -> Path:
    """Emitted files and discovered rules: $AUTOPAR_CACHE, else below the user's cache directory."""
    chosen = os.environ.get("AUTOPAR_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "autopar"
