"""Represents a batch: the tensors in a call's arguments, by key, and the constants besides them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from autopar.errors import InputError
from autopar.request.nested import leaves_of, mapped, top
from autopar.request.opaque import described, shapes_of
from autopar.utils.messages import argument


def tensors_in(value: Any, key: str) -> dict[str, torch.Tensor]:
    """Return the tensors inside nested containers, by key."""
    return {name: leaf for name, leaf in leaves_of(value, key) if isinstance(leaf, torch.Tensor)}


def places_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's positional and keyword arguments in one dict, by key."""
    return {**{str(i): v for i, v in enumerate(args)}, **{top(k): v for k, v in kwargs.items()}}


@dataclass(frozen=True)
class Batch:
    """One call's tensors by key (see `autopar.request.nested`), and its constants."""

    tensors: Mapping[str, torch.Tensor]
    constants: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Batch:
        """Make the batch of a call's arguments."""
        places = places_of(args, kwargs)
        leaves = [leaf for key, value in places.items() for leaf in leaves_of(value, key)]
        tensors = {key: leaf for key, leaf in leaves if isinstance(leaf, torch.Tensor)}
        _refuse_sharded(tensors)
        constants = [(k, described(v, k)) for k, v in leaves if not isinstance(v, torch.Tensor)]
        for key, value in places.items():
            if not isinstance(value, torch.Tensor):
                constants += list(shapes_of(value, key))
        return cls(tensors, tuple(sorted(constants)))

    @property
    def signature(self) -> tuple[object, ...]:
        """Shapes, dtypes and constants: equal for batches that one captured graph can serve."""
        shapes = ((k, tuple(t.shape), t.dtype) for k, t in sorted(self.tensors.items()))
        return (*shapes, *self.constants)

    @property
    def digest(self) -> str:
        """Twelve hex digits over keys, shapes and values; meta tensors count by shape and dtype only."""
        parts = hashlib.sha256(repr(self.signature).encode())
        for _, tensor in sorted(self.tensors.items()):
            if not tensor.is_meta:
                values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                parts.update(values.numpy().tobytes())
        return parts.hexdigest()[:12]

    def __str__(self) -> str:
        return ", ".join(
            f"{key}: {str(t.dtype).removeprefix('torch.')}{list(t.shape)}"
            for key, t in self.tensors.items()
        )


def _refuse_sharded(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise `InputError` for a DTensor, as a parallel model returns it: inputs are whole or local."""
    for key, tensor in tensors.items():
        if isinstance(tensor, DTensor):
            raise InputError(
                f"The input {key} is a DTensor of shape {list(tensor.shape)} with placements "
                f"{tensor.placements}. Pass {key}.full_tensor(), which gathers it on every rank; with "
                f"{argument('local', True)}, this rank's part of that."
            )


def as_call(inputs: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return example inputs as positional and keyword arguments."""
    if isinstance(inputs, torch.Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), inputs
    return tuple(inputs), {}


__all__ = ["Batch", "as_call", "leaves_of", "mapped", "places_of", "tensors_in", "top"]
