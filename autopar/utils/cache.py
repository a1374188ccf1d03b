"""The cache directory of autopar, and atomic writes."""

from __future__ import annotations

import os
import stat
import uuid
from pathlib import Path

from autopar.errors import InputError

REMEDY = "Set AUTOPAR_CACHE to a folder of your own."


def write(source: str, path: Path) -> Path:
    """Write a file atomically, with the permissions of the user's umask.

    A special file such as ``/dev/null`` or a pipe is written into, never replaced.
    """
    content = source.encode("utf-8", "backslashreplace").decode()
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8") as place:
            place.write(content)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def keep(source: str, name: str) -> Path:
    """Write a file of the cache; raise `InputError` with the reason and a remedy if that fails."""
    path = cache_directory() / name
    try:
        return write(source, path)
    except OSError as error:
        raise InputError(
            f"Cannot write the emitted source {path}: {error.strerror or error}. {REMEDY}"
        ) from None


def cache_directory() -> Path:
    """Return the directory of emitted files and discovered rules.

    It is $AUTOPAR_CACHE, or else below the user's cache directory.  Its content is trusted, so raise
    `InputError` if another user can write to it.
    """
    path = _chosen()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
    except OSError as error:
        if isinstance(error, FileExistsError | NotADirectoryError):
            raise InputError(
                f"The cache {path} is not a folder: a file has its name. {REMEDY}"
            ) from None
        # An absent directory has no content to trust, and writing to it raises an error later.
        return path
    if found.st_uid not in (os.geteuid(), 0):
        raise InputError(f"The cache {path} belongs to another user, who could change it. {REMEDY}")
    if found.st_mode & stat.S_IWOTH:
        raise InputError(
            f"Everybody may write to the cache {path}. Remove that permission (chmod o-w "
            f"{path}), or set AUTOPAR_CACHE to a folder of your own."
        )
    return path


def _chosen() -> Path:
    chosen = os.environ.get("AUTOPAR_CACHE")
    if chosen:
        return Path(chosen)
    general = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(general):  # the XDG specification says to ignore relative paths
        return Path(general) / "autopar"
    try:
        return Path.home() / ".cache" / "autopar"
    except RuntimeError:
        raise InputError(f"There is no home directory to keep files in. {REMEDY}") from None
