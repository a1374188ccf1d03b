"""Saves weights in the format of transformers: safetensors files of bounded size and an index.

Tied tensors are saved once, under their name in the graph.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from autopar.runtime.checkpoints.disk import synchronise, write
from autopar.runtime.weights.files import INDEX

FORMAT = {"format": "pt"}
"""Metadata that transformers requires in a file."""


def save(path: Path, tensors: Mapping[str, torch.Tensor], most_nbytes: float) -> None:
    """Write a .safetensors file or a directory.  Collective.

    Tensors are gathered one by one; rank 0 holds at most one file's tensors.
    """
    alone = path.suffix == ".safetensors"
    groups = [list(tensors)] if alone else list(_in_files(tensors, most_nbytes))
    files = [path] if alone else [path / name for name in _file_names(len(groups))]
    if _is_first():
        files[0].parent.mkdir(parents=True, exist_ok=True)
    for names, file in zip(groups, files, strict=True):
        _write(file, {name: tensors[name] for name in names})
    if _is_first() and not alone:
        _write_index(path, dict(zip(files, groups, strict=True)), tensors)
    if dist.is_initialized():
        dist.barrier()


@torch.no_grad()
def _write(file: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    held = {}
    for name, tensor in tensors.items():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if _is_first():
            held[name] = whole.detach().to("cpu", copy=True).contiguous()
        del whole
    if _is_first():
        unfinished = file.with_name(f".{file.name}.unfinished")
        save_file(held, unfinished, metadata=FORMAT)
        synchronise(unfinished)
        os.replace(unfinished, file)


def _write_index(
    path: Path, groups: Mapping[Path, list[str]], tensors: Mapping[str, torch.Tensor]
) -> None:
    """Write the index, and remove files of an earlier save that it does not list."""
    index = path / INDEX
    if len(groups) > 1:
        total = sum(map(_nbytes, tensors.values()))
        where = {name: file.name for file, names in groups.items() for name in names}
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": where}, indent=2)
        for folder in (path, path.absolute().parent):
            synchronise(folder)
        unfinished = path / f".{INDEX}.{secrets.token_hex(4)}"
        write(unfinished, text.encode())
        os.replace(unfinished, index)
    else:
        index.unlink(missing_ok=True)
    for file in path.glob("model*.safetensors"):
        if file not in groups:
            file.unlink()


def _file_names(count: int) -> list[str]:
    if count == 1:
        return ["model.safetensors"]
    # Unique names: the files of the previous save stay intact until the index names the new ones.
    mark = secrets.token_hex(4)
    return [f"model-{i + 1:05d}-of-{count:05d}-{mark}.safetensors" for i in range(count)]


def _in_files(tensors: Mapping[str, torch.Tensor], most: float) -> Iterator[list[str]]:
    """Yield the names of each file, in order, as many as fit."""
    chosen: list[str] = []
    held = 0
    for name, tensor in tensors.items():
        if chosen and held + _nbytes(tensor) > most:
            yield chosen
            chosen, held = [], 0
        chosen.append(name)
        held += _nbytes(tensor)
    yield chosen


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _is_first() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0
