"""Finds the loss in a model's output, and names the tensors of that output by path."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from autopar.errors import CaptureError
from autopar.utils.messages import argument


def find_loss(
    model: nn.Module, output: Any, loss: Callable[..., Any] | None, targets: Mapping[str, Any]
) -> torch.Tensor | None:
    """Return the scalar to train on, from the loss callable or the model's output; None if missing.

    Raise `CaptureError` if the callable returns anything but a floating scalar.
    """
    if loss is not None:
        value = loss(output, **targets)
        if not _is_scalar(value):
            raise CaptureError(
                f"The loss callable returned {_described(value)}; it must return one floating "
                "scalar."
            )
        return _tensor(value)
    if _is_scalar(output):
        return _tensor(output)
    inner = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return _tensor(inner) if _is_scalar(inner) else None


def no_loss(model: nn.Module, output: Any, keys: tuple[str, ...]) -> CaptureError:
    """Return the error for a model without a loss."""
    name = type(model).__name__
    return CaptureError(
        f"{name} returned {_described(output)} for the example inputs ({', '.join(keys)}): "
        "there is no "
        f"loss to train on. Either add what {name} computes its loss from to example_inputs (for "
        f"Hugging Face models: labels=...), or pass {argument('loss')}, a callable "
        "loss(output, **targets) that returns one floating scalar; example inputs that forward does "
        "not accept are its targets."
    )


def output_tensors(output: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (path, tensor) from mappings, sequences and dataclasses; a bare tensor is called `output`.

    Other objects, such as a key-value cache, are internal to the model and not part of the graph.
    """
    if isinstance(output, torch.Tensor):
        yield path or "output", output
    else:
        for key, item in _items(output):
            yield from output_tensors(item, f"{path}.{key}" if path else str(key))


def _items(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, (tuple, list)):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return []


def _is_scalar(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1 and value.is_floating_point()


def _tensor(value: Any) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)} and dtype {str(value.dtype)[6:]}"
    keys = [str(key) for key, _ in _items(value)]
    return f"a {type(value).__name__}" + (f" with {', '.join(keys)}" if keys else "")
