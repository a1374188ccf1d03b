"""The protocol of weights sources, which have names and shapes and fill targets by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.distributed.tensor import DTensor

from autopar.errors import InputError
from autopar.request.weights import WeightsSource
from autopar.runtime.agreement import assert_same_on_all_ranks
from autopar.runtime.sample import digest
from autopar.runtime.weights.dcp import Checkpoint
from autopar.runtime.weights.files import Safetensors
from autopar.runtime.weights.target import Target

SAME_VALUES = (
    "Every rank keeps its part of the values that it passes: read the same file on every rank, or "
    "send one rank's values to all with torch.distributed.broadcast."
)


class Source(Protocol):
    """Tensors by name, which need not all be in memory at once."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of the source's tensors, by name."""

    def fill(self, targets: Mapping[str, Target]) -> None:
        """Set targets, given by the source's names.  All ranks call it with the same names."""


class Given:
    """A source of tensors in memory: a state dict, of plain tensors or this module's own."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._tensors = {k: v for k, v in tensors.items() if isinstance(v, torch.Tensor)}

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def fill(self, targets: Mapping[str, Target]) -> None:
        for name, target in targets.items():
            value = self._tensors[name].detach()
            if isinstance(value, DTensor):
                value = value.full_tensor()
            target.put(value)

    def __str__(self) -> str:
        return "the state dict"

    @property
    def text(self) -> str:
        """The names and a digest of some values; a tensor that is sharded already has no digest."""
        found = self._tensors
        whole = [t for t in found.values() if not (isinstance(t, DTensor) or t.is_meta)]
        return f"{len(found)} tensors of digest {digest(whole)[:16]}, {', '.join(found)}"


def refuse_different(source: Source, *, is_own: bool = False) -> None:
    """Raise `RankMismatchError` on all ranks if each has a state dict in memory, with other values.

    `is_own`: it has only what this rank's stages hold.
    """
    if isinstance(source, Given):
        text = "the state dict of its stages" if is_own else source.text
        assert_same_on_all_ranks("the values to load", text, SAME_VALUES)


def opened(weights: WeightsSource) -> Source:
    """Open a weights source: a file, a directory or a state dict.  Raise `InputError` if invalid."""
    if isinstance(weights, Mapping):
        meta = [k for k, v in weights.items() if isinstance(v, torch.Tensor) and v.is_meta]
        if meta:
            raise InputError(f"The state dict has no values for {meta[0]!r}: it is on meta.")
        return Given(weights)
    path = Path(weights)
    if (path / ".metadata").is_file():
        return Checkpoint(path)
    if path.is_dir() or (path.suffix == ".safetensors" and path.exists()):
        return Safetensors.at(path)
    if not path.exists():
        raise InputError(f"weights={str(weights)!r} does not exist. Pass an existing path.")
    raise InputError(
        f"weights={str(weights)!r} is not a format of weights that autopar reads: pass a "
        ".safetensors file, a directory of them, a torch.distributed.checkpoint directory, or a "
        "state dict (for other files, what torch.load(path, mmap=True, weights_only=True) "
        "gives)."
    )
