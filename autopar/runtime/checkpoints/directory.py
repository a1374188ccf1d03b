"""The directory of a checkpoint: versions, and one file that names the current one.

    path/.metadata               read by torch.distributed.checkpoint; replacing it is the commit
    path/version-<hex>/          the files of one save, with a manifest of their digests

The files of a version do not change after the commit, and the previous version is removed only when
the new one and the file that names it are on disk.  So a save that is interrupted at any time leaves
the last complete version.  A copy of the directory is a valid checkpoint.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import re
import secrets
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from autopar.errors import CheckpointError
from autopar.runtime.checkpoints import manifest
from autopar.runtime.checkpoints.disk import synchronise, write
from autopar.runtime.checkpoints.metadata import NAME, parsed

PREFIX = "version-"
_VERSION = re.compile(rf"{PREFIX}[0-9a-f]{{16}}")
_UNCOMMITTED = re.compile(r"\.metadata\.[0-9a-f]{16}")
_PLAIN = re.compile(r"__\d+_\d+\.distcp")
"""Names of the files of a checkpoint without versions."""


class Version:
    """One save in progress; rank 0 begins it, and commits or drops it."""

    def __init__(self, path: Path, name: str, lock: int | None = None) -> None:
        self.path, self.name, self._lock = path, name, lock
        self.folder = path / name
        self._replaced = False

    @classmethod
    def begin(cls, path: Path) -> Version:
        """Create a version next to existing ones.

        Raise `CheckpointError` if the path is a file or another process is saving to it.
        """
        if path.exists() and not path.is_dir():
            raise CheckpointError(
                f"{path} is a file; a checkpoint is a directory. Save to another path."
            )
        path.mkdir(parents=True, exist_ok=True)
        lock = _locked(path)
        made = cls(path, PREFIX + secrets.token_hex(8), lock)
        try:
            made.folder.mkdir()
            synchronise(path.absolute().parent)
        except BaseException:
            made.end()
            raise
        return made

    def commit(self, about: dict[str, Any], files: dict[str, manifest.File]) -> None:
        """Make this version the checkpoint, atomically, and remove older versions."""
        inner = self.folder / NAME
        found = parsed(inner.read_bytes(), inner)
        found.storage_data = {
            index: replace(entry, relative_path=f"{self.name}/{entry.relative_path}")
            for index, entry in found.storage_data.items()
        }
        found.storage_meta = None  # it contains the path, which is wrong in a copy
        content = pickle.dumps(found)
        inner.unlink()
        manifest.write(self.folder, content, about, files)
        synchronise(self.folder)
        new = self.path / f"{NAME}.{self.name.removeprefix(PREFIX)}"
        write(new, content)
        synchronise(self.path)
        os.replace(new, self.path / NAME)
        self._replaced = True
        synchronise(self.path)
        # The commit is complete: files that cannot be removed now are removed by the next save.
        with contextlib.suppress(OSError):
            self._sweep()

    def _sweep(self) -> None:
        """Remove older versions and the files of interrupted saves."""
        for each in list(self.path.iterdir()):
            if each.name != self.name and _VERSION.fullmatch(each.name):
                shutil.rmtree(each, ignore_errors=True)
            elif _UNCOMMITTED.fullmatch(each.name) or _PLAIN.fullmatch(each.name):
                each.unlink(missing_ok=True)

    def drop(self) -> None:
        """Remove this version unless it has been committed."""
        if self._replaced:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        left = self.path / f"{NAME}.{self.name.removeprefix(PREFIX)}"
        # The file has no effect, and the next save removes it.
        with contextlib.suppress(OSError):
            left.unlink(missing_ok=True)

    def end(self) -> None:
        """Release the lock on the directory."""
        lock, self._lock = self._lock, None
        if lock is not None:
            with contextlib.suppress(OSError):
                os.close(lock)


def _locked(path: Path) -> int | None:
    """Lock the directory until this process ends; None if the file system does not support locks.

    Raise `CheckpointError` if another process holds the lock.
    """
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise CheckpointError(
            f"Another process is saving to {path} right now: use a separate path for each job."
        ) from None
    except OSError:
        os.close(handle)
        return None
    return handle


def versions(path: Path) -> list[Path]:
    """Return the directories of all versions, complete or not."""
    return sorted(each for each in path.iterdir() if _VERSION.fullmatch(each.name))
