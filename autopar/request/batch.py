"""A batch: the tensors in what a model is called with, by key, and what else is in there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch


def leaves_of(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """(dotted key, leaf) inside nested mappings and sequences."""
    if isinstance(value, Mapping):
        items: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, (tuple, list)):
        items = list(enumerate(value))
    else:
        yield key, value
        return
    for part, item in items:
        yield from leaves_of(item, f"{key}.{part}")


def tensors_in(value: Any, key: str) -> dict[str, torch.Tensor]:
    """Tensors inside nested mappings and sequences, by dotted key."""
    return {name: leaf for name, leaf in leaves_of(value, key) if isinstance(leaf, torch.Tensor)}


def mapped(value: Any, key: str, change: Callable[[Any, str], Any]) -> Any:
    """The same nesting with every leaf changed, given its dotted key."""
    if isinstance(value, Mapping):
        return {k: mapped(v, f"{key}.{k}", change) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [mapped(v, f"{key}.{i}", change) for i, v in enumerate(value)]
    return change(value, key)


@dataclass(frozen=True)
class Batch:
    """One call's tensors by key (keyword or position, dotted inside containers), and its constants."""

    tensors: Mapping[str, torch.Tensor]
    constants: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Batch:
        """Read a call."""
        places = {**{str(i): value for i, value in enumerate(args)}, **kwargs}
        leaves = [leaf for key, value in places.items() for leaf in leaves_of(value, key)]
        tensors = {key: leaf for key, leaf in leaves if isinstance(leaf, torch.Tensor)}
        constants = ((k, repr(leaf)) for k, leaf in leaves if not isinstance(leaf, torch.Tensor))
        return cls(tensors, tuple(sorted(constants)))

    @property
    def signature(self) -> tuple[object, ...]:
        """Equal for batches that one captured graph can serve."""
        shapes = ((k, tuple(t.shape), t.dtype) for k, t in sorted(self.tensors.items()))
        return (*shapes, *self.constants)

    @property
    def digest(self) -> str:
        """Twelve hex digits of keys, shapes and values; tensors without storage count by shape."""
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


def as_call(inputs: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Example inputs as positional and keyword arguments."""
    if isinstance(inputs, torch.Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), inputs
    return tuple(inputs), {}
