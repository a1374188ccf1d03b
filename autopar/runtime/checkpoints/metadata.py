"""Reads the ``.metadata`` file of `torch.distributed.checkpoint`, a pickle, without executing code.

Only the classes that such files consist of are loaded; any other name in the file is refused.
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
"""The module and name of each class and function that a checkpoint's metadata consists of."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in KNOWN:
            return getattr(importlib.import_module(module), name)
        found = vars(torch).get(name) if module == "torch" else None
        if isinstance(found, torch.dtype):
            return found
        raise CheckpointError(
            f"it names {module}.{name}, which checkpoint metadata never contains, and which "
            "could run code"
        )


def parsed(content: bytes, path: Path) -> Metadata:
    """Parse the metadata in a file's bytes; raise `CheckpointError` if they are anything else."""
    try:
        found = _Unpickler(io.BytesIO(content)).load()
        _check(found)
    # A damaged pickle may raise any exception.
    except (Exception, RecursionError) as error:
        raise CheckpointError(
            f"{path} is not checkpoint metadata: {error}. The file is damaged or was not written "
            "by torch.distributed.checkpoint: use another checkpoint."
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
        """Return the parsed metadata."""
        if getattr(self._parsed, "storage_meta", None) is None:
            self._parsed.storage_meta = StorageMeta()
        return self._parsed


class Planner(DefaultLoadPlanner):
    """A load planner that also reads non-tensor values without executing code."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Read a non-tensor value into the flat state dict."""
        # Never weights_only=False, as in torch's own planner: it runs code that the file names.
        found = torch.load(value, weights_only=True)
        self.original_state_dict[read_item.dest_index.fqn] = found
