"""The manifest of a checkpoint: the size and SHA-256 of every file, and information on the save."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autopar.errors import CheckpointError
from autopar.runtime.checkpoints import disk

NAME = "manifest.json"
FORMAT = 1
File = tuple[int, str]
"""The size in bytes, and the digest."""
MOST_NBYTES = 2**30


@dataclass(frozen=True)
class Manifest:
    """The files in the manifest's folder, by name.

    `metadata` is the digest of the file that names this version.
    """

    metadata: str
    files: dict[str, File]
    about: dict[str, Any]


def digest(path: Path) -> File:
    """Return the size and digest of a file; raise `CheckpointError` if it is not a regular file."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(handle, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise CheckpointError(f"{path} is not a file.")
        return found.st_size, hashlib.file_digest(file, "sha256").hexdigest()


def write(folder: Path, metadata: bytes, about: dict[str, Any], files: dict[str, File]) -> None:
    """Write the manifest, with a digest of itself."""
    body = {"format": FORMAT, "metadata": _sha(metadata), "files": files, "about": about}
    text = json.dumps({"body": body, "sha256": _sha(_canonical(body))}, indent=1)
    disk.write(folder / NAME, text.encode())


def read(folder: Path) -> Manifest:
    """Read a manifest; raise `CheckpointError` if it is missing or damaged."""
    path = folder / NAME
    try:
        found = json.loads(path.read_bytes())
        body = found["body"]
        if found["sha256"] != _sha(_canonical(body)):
            raise CheckpointError(f"{path} is damaged: its contents do not match its digest.")
        if body["format"] != FORMAT:
            raise CheckpointError(
                f"{path} has format {body['format']}; this autopar reads {FORMAT}."
            )
        files = {name: (int(entry[0]), str(entry[1])) for name, entry in body["files"].items()}
        return Manifest(str(body["metadata"]), files, dict(body["about"]))
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no {NAME}.") from None
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} is damaged: {error}.") from None


def is_of(found: Manifest, metadata: bytes) -> bool:
    """Whether the manifest belongs to the version that this metadata file names."""
    return found.metadata == _sha(metadata)


def verify(folder: Path, name: str, wanted: File) -> None:
    """Raise `CheckpointError` unless the file has the size and digest in the manifest."""
    path = folder / name
    try:
        found = digest(path)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror or error}. The checkpoint is incomplete: "
            "copy the whole directory, or use another one."
        ) from None
    if found != wanted:
        what = f"has {found[0]} bytes, not {wanted[0]}" if found[0] != wanted[0] else "has changed"
        raise CheckpointError(
            f"{path} is damaged: it {what} since it was written. Use another checkpoint."
        )


def _canonical(body: Any) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
