"""Reads weights from a `torch.distributed.checkpoint` directory: ours, under "model.", or any other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import empty as empty_dtensor

from autopar.runtime.checkpoints.layouts import plain_layout
from autopar.runtime.checkpoints.opening import opened
from autopar.runtime.weights.target import Target

PREFIX = "model."


class Checkpoint:
    """A checkpoint as a source of weights; each rank reads the stored pieces that overlap its shards."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found = opened(path)
        kept = self._found.keys
        found = {k: tuple(m.size) for k, m in kept.items() if isinstance(m, TensorStorageMetadata)}
        ours = {k.removeprefix(PREFIX): s for k, s in found.items() if k.startswith(PREFIX)}
        # Our checkpoints hold optimizer, step and random state besides the model.
        self._prefix = PREFIX if ours and {"step", "rng"} <= found.keys() else ""
        self.shapes: dict[str, tuple[int, ...]] = ours if self._prefix else found

    @torch.no_grad()
    def fill(self, targets: Mapping[str, Target]) -> None:
        """Read directly into the shards; strided shards, which DCP refuses, via plain ones."""
        self._found.verify_for({self._prefix + name for name in targets})
        strided: dict[str, Target] = {}
        straight: dict[str, torch.Tensor] = {}
        for name, target in targets.items():
            tensor = target.tensor.detach()
            if isinstance(tensor, DTensor) and plain_layout(tensor) != tensor.placements:
                strided[name] = target
            else:
                straight[self._prefix + name] = tensor
        self._load(straight)
        for name, target in strided.items():
            tensor = target.tensor
            assert isinstance(tensor, DTensor)
            plain = empty_dtensor(
                target.shape, dtype=tensor.dtype, device_mesh=tensor.device_mesh,
                placements=plain_layout(tensor),
            )  # fmt: skip
            self._load({self._prefix + name: plain})
            target.put(plain.full_tensor())

    def _load(self, tensors: dict[str, torch.Tensor]) -> None:
        if tensors:
            self._found.read(tensors, alone=True)

    def __str__(self) -> str:
        return str(self._path)
