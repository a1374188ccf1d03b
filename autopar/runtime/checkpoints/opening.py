"""Opens a checkpoint: finds its current version and verifies its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.metadata import Metadata

from autopar.errors import CheckpointError
from autopar.runtime.checkpoints import manifest
from autopar.runtime.checkpoints.directory import PREFIX, versions
from autopar.runtime.checkpoints.metadata import NAME, Planner, Reader, parsed


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint directory and its metadata; `manifest` is None if it was written without digests."""

    path: Path
    metadata: Metadata
    folder: Path
    manifest: manifest.Manifest | None

    @property
    def keys(self) -> dict[str, Any]:
        """The metadata of each stored value, by key."""
        return self.metadata.state_dict_metadata

    def verify(self, part: int = 0, parts: int = 1) -> None:
        """Raise `CheckpointError` if a file is damaged; check one of `parts` shares of the files."""
        if self.manifest is not None:
            for name in sorted(self.manifest.files)[part::parts]:
                manifest.verify(self.folder, name, self.manifest.files[name])

    def verify_for(self, keys: set[str]) -> None:
        """Raise `CheckpointError` if a file that holds one of these keys is damaged."""
        if self.manifest is None:
            return
        entries = self.metadata.storage_data.items()
        needed = {entry.relative_path for index, entry in entries if index.fqn in keys}
        for name in sorted(each.rpartition("/")[2] for each in needed):
            if name not in self.manifest.files:
                raise CheckpointError(f"{self.path}: the manifest does not list {name}.")
            manifest.verify(self.folder, name, self.manifest.files[name])

    def read(self, tensors: dict[str, Any], *, alone: bool) -> None:
        """Read into the given tensors, by key.  Collective unless `alone`."""
        state_dict_loader.load(
            tensors,
            storage_reader=Reader(self.path, self.metadata),
            planner=Planner(flatten_state_dict=False),
            no_dist=alone,
        )


def opened(path: Path) -> Checkpoint:
    """Open the current version in a directory; raise `CheckpointError` if there is none."""
    if not path.exists():
        raise CheckpointError(f"There is no checkpoint {path}: {_absent(path)}.")
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a checkpoint: it is a file, not a directory.")
    if not (path / NAME).is_file():
        unfinished = "; a save was interrupted" if versions(path) else ""
        raise CheckpointError(f"{path} is not a checkpoint: it has no .metadata file{unfinished}.")
    content = (path / NAME).read_bytes()
    folders = versions(path)
    found = _named(folders, content)
    metadata = parsed(content, path / NAME)
    if found is not None:
        return Checkpoint(path, metadata, *found)
    if any(PREFIX in entry.relative_path for entry in metadata.storage_data.values()):
        raise CheckpointError(
            f"{path} is incomplete: the version that its .metadata names has no manifest. Copy "
            "the whole directory, or use another checkpoint."
        )
    return Checkpoint(path, metadata, path, None)


def _has_manifest(folder: Path) -> bool:
    return (folder / manifest.NAME).exists()


def _named(folders: list[Path], content: bytes) -> tuple[Path, manifest.Manifest] | None:
    """Return the version whose manifest has the digest of the metadata, or None."""
    first: CheckpointError | None = None
    for folder in folders:
        try:
            found = manifest.read(folder)
        except CheckpointError as error:
            first = first or (error if _has_manifest(folder) else None)
            continue
        if manifest.is_of(found, content):
            return folder, found
    if first is not None:
        raise CheckpointError(f"{first} Use another checkpoint.")
    return None


def _absent(path: Path) -> str:
    """Return why there is no checkpoint: the remains of an interrupted save, or no directory."""
    old = path.with_name(f".{path.name}.old")
    if (old / NAME).is_file():
        return (
            "an earlier save was interrupted between two renames, and the complete checkpoint "
            f"before it is {old}: rename it to {path}"
        )
    return "the directory does not exist"
