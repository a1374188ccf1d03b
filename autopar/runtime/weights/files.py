"""Reads slices of weights from one or several safetensors files, with or without an index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from autopar.errors import InputError
from autopar.runtime.weights.target import Box, Target
from cost_models.files import text

INDEX = "model.safetensors.index.json"


class Safetensors:
    """Safetensors files as a source of weights; shapes come from the files' headers."""

    def __init__(self, path: Path, files: Mapping[str, Path]) -> None:
        self._path, self._files = path, files
        self.shapes: dict[str, tuple[int, ...]] = {}
        for file in dict.fromkeys(files.values()):
            with _open(file) as opened:
                for name in opened.keys():  # noqa: SIM118 - no mapping
                    if files.get(name) == file:
                        self.shapes[name] = tuple(opened.get_slice(name).get_shape())
        absent = sorted(files.keys() - self.shapes.keys())
        if absent:
            raise InputError(
                f"{files[absent[0]]} lacks {absent[0]!r}, which the index says it has."
            )

    @classmethod
    def at(cls, path: Path) -> Safetensors:
        """Open one file, or a directory with an index or with files that have no names in common."""
        if not path.is_dir():
            return cls(path, dict.fromkeys(_names(path), path))
        index = path / INDEX
        if index.is_file():
            return cls(path, {name: path / file for name, file in _listed(index).items()})
        files: dict[str, Path] = {}
        for file in sorted(path.glob("*.safetensors")):
            for name in _names(file):
                if name in files:
                    raise InputError(
                        f"{name!r} is in {files[name].name} and in {file.name} of {path}, which "
                        f"has no {INDEX}: pass weights= the file that you mean."
                    )
                files[name] = file
        if not files:
            raise InputError(f"{path} holds neither .safetensors files nor a .metadata file.")
        return cls(path, files)

    def fill(self, targets: Mapping[str, Target]) -> None:
        """Read the slices that each target needs; a file is mapped while one tensor is read."""
        for name, target in targets.items():
            with _open(self._files[name]) as file:
                target.fill(lambda box, file=file, name=name: _read(file, name, box))  # type: ignore[misc]

    def __str__(self) -> str:
        return str(self._path)


def _listed(index: Path) -> dict[str, str]:
    """Return the file of each tensor; all files must be in the directory of the index."""
    try:
        listed = dict(json.loads(text(index))["weight_map"])
        if not all(isinstance(file, str) and Path(file).name == file for file in listed.values()):
            raise ValueError("weight_map names files that are not in the same directory")
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(
            f"{index} is not an index of safetensors files: {type(error).__name__}: {error}. "
            "Pass weights= the file that you mean, or write the directory again."
        ) from None
    return listed


def _read(file: Any, name: str, box: Box) -> torch.Tensor:
    found: torch.Tensor = file.get_slice(name)[box] if box else file.get_tensor(name)
    return found


def _names(path: Path) -> list[str]:
    with _open(path) as file:
        return list(file.keys())


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (OSError, SafetensorError) as error:
        raise InputError(f"Cannot read {path} as safetensors: {error}.") from None
