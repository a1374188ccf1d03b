"""Rebuilds the output object of the user's model with distributed tensors."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch


def class_named(path: str) -> type | None:
    """Return the class named ``module:name``, or None if its module is not imported."""
    module, _, name = path.partition(":")
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) else None


def rebuild(
    returned: type | None, loss: torch.Tensor | None, tensors: Mapping[str, torch.Tensor]
) -> Any:
    """Return the user's output object with `.loss` and the requested tensors, given by dotted path.

    Mappings and dataclasses keep their class; for a model that returned a bare tensor or a tuple it is
    a namespace with `loss` and one attribute per tensor.
    """
    fields = {key: value for key, value in _nested(tensors).items() if key != "loss"}
    if loss is not None:
        fields = {"loss": loss, **fields}
    if returned is not None and dataclasses.is_dataclass(returned):
        known = {field.name for field in dataclasses.fields(returned)}
        if fields.keys() <= known:
            return returned(**fields)
    if returned is not None and issubclass(returned, dict):
        return returned(fields)
    return SimpleNamespace(**{_attribute(key): value for key, value in fields.items()})


def _nested(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Convert dotted paths to nested tuples and dicts."""
    found: dict[str, Any] = {}
    for path, tensor in tensors.items():
        head, _, rest = path.partition(".")
        if rest:
            found.setdefault(head, {})[rest] = tensor
        else:
            found[head] = tensor
    return {
        key: _container(_nested(value)) if type(value) is dict else value
        for key, value in found.items()
    }


def _container(items: dict[str, Any]) -> Any:
    return tuple(items.values()) if all(key.isdigit() for key in items) else items


def _attribute(key: str) -> str:
    return key if key.isidentifier() else f"output_{key}"
