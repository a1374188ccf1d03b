"""The ``.metadata`` file of `torch.distributed.checkpoint`, a pickle: read as data, never as code.

Only the classes that such files are made of are found; anything else that a file names is refused.
"""

from __future__ import annotations

import importlib
import io
import pickle
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem

from autopar.errors import CheckpointError

NAME = ".metadata"
MOST_NBYTES = 2**32
_FILES = "torch.distributed.checkpoint.filesystem"
_VALUES = "torch.distributed.checkpoint.metadata"
KNOWN = {
    *((_FILES, name) for name in ("_StorageInfo", "_StoragePrefix")),
    *(
        (_VALUES, name)
        for name in (
            "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
            "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
        )
    ),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    *(("pathlib", name) for name in ("Path", "PosixPath", "PurePosixPath")),
    *(("pathlib._local", name) for name in ("Path", "PosixPath", "PurePosixPath")),
    ("collections", "OrderedDict"),
}  # fmt: skip
"""By module and name: what the metadata of a checkpoint consists of."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in KNOWN:
            return getattr(importlib.import_module(module), name)
        found = vars(torch).get(name) if module == "torch" else None
        if isinstance(found, torch.dtype):
            return found
        raise CheckpointError(
            f"it names {module}.{name}, which no metadata of a checkpoint consists of, and which could "
            "run code"
        )


def parsed(content: bytes, path: Path) -> Metadata:
    """The metadata in a file's bytes; raise `CheckpointError` where they are something else."""
    try:
        found = _Unpickler(io.BytesIO(content)).load()
        _check(found)
    # A damaged pickle raises whatever its bytes lead to.
    except (Exception, RecursionError) as error:
        raise CheckpointError(
            f"{path} is no metadata of a checkpoint: {error}. The file is damaged or was not written by "
            "torch.distributed.checkpoint: take another checkpoint."
        ) from None
    return found  # type: ignore[no-any-return]


def _check(found: Any) -> None:
    if not isinstance(found, Metadata):
        raise CheckpointError(f"it holds a {type(found).__name__}")
    if not isinstance(found.state_dict_metadata, dict) or not isinstance(found.storage_data, dict):
        raise CheckpointError("it lists no tensors")
    for entry in found.storage_data.values():
        place = PurePosixPath(entry.relative_path)
        if place.is_absolute() or ".." in place.parts:
            raise CheckpointError(f"it names {entry.relative_path}, a file outside of it")
        if min(entry.offset, entry.length) < 0:
            raise CheckpointError(f"a tensor lies at {entry.offset} of {entry.relative_path}")


class Reader(FileSystemReader):
    """Reads a checkpoint whose metadata was parsed already."""

    def __init__(self, path: Path, metadata: Metadata) -> None:
        super().__init__(path)
        self._parsed = metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """As parsed."""
        if getattr(self._parsed, "storage_meta", None) is None:
            self._parsed.storage_meta = StorageMeta()
        return self._parsed


class Planner(DefaultLoadPlanner):
    """Reads values that are no tensors as data, too."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Into the flat state dict that is loaded."""
        # Never weights_only=False, which torch's own planner says: that runs what the file names.
        found = torch.load(value, weights_only=True)
        self.original_state_dict[read_item.dest_index.fqn] = found
