"""A tree of modules of the user's own classes that holds the parallel model's tensors.

The modules are made without ``__init__``.  Modes, attributes and names are those of the user's modules;
parameters and buffers are the parallel model's.  None of them computes (`autopar.runtime.closed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from autopar.runtime import closed
from autopar.runtime.closed import Closed, Elsewhere

INTERNAL = frozenset(vars(nn.Module()))
"""Attributes that `nn.Module` sets on every module."""
SEQUENCE = ("__len__", "__getitem__", "__iter__", "__contains__", "__reversed__")
"""Methods that Python looks up on the class only."""


def holders(model: nn.Module, tensors: Mapping[str, torch.Tensor], device: str) -> nn.Module:
    """Return the tree for `model` on a device type.

    `tensors`: the parallel model's, by the user's names; those that this rank does not hold are absent.
    """
    named = (*model.named_parameters(), *model.named_buffers())
    for name, tensor in named:
        if name in tensors:
            _marked_like(tensors[name], tensor)
    twins: dict[int, Any] = {id(t): tensors.get(name, Elsewhere(name)) for name, t in named}
    twins |= {id(module): _bare(module) for module in model.modules()}
    for path, module in model.named_modules():
        _complete(twins[id(module)], module, path, twins, device)
    made: nn.Module = twins[id(model)]
    return made


def _marked_like(made: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy attributes that users set on a tensor, such as ``_no_weight_decay`` for parameter groups."""
    for key, value in vars(tensor).items():
        if key not in vars(made):
            setattr(made, key, value)


class Compiled(nn.Module):
    """Replaces torch.compile's wrapper of a submodule; attributes are those of the module inside."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_orig_mod"), name)


def _bare(module: nn.Module) -> nn.Module:
    # torch's own wrapper reads attributes of the module inside before it is set.
    kind = Compiled if "_orig_mod" in vars(module)["_modules"] else type(module)
    made: nn.Module = object.__new__(kind)
    nn.Module.__init__(made)
    return made


def _complete(
    made: nn.Module, module: nn.Module, path: str, twins: Mapping[int, Any], device: str
) -> None:
    own = vars(made)
    own["training"] = module.training
    own |= {key: _twin(v, twins) for key, v in vars(module).items() if key not in INTERNAL}
    for kind in ("parameter", "buffer", "module"):
        held = f"_{kind}s"
        items = {key: _twin(value, twins) for key, value in vars(module)[held].items()}
        absent = {key: value for key, value in items.items() if isinstance(value, Elsewhere)}
        here = {key: value for key, value in items.items() if key not in absent}
        own[held] = Closed.over(here, path, kind)
        own |= absent
    own["_non_persistent_buffers_set"] = set(module._non_persistent_buffers_set)
    for hooks in closed.HOOKS:
        own[hooks] = Closed.over({}, path, "hook")
    own["forward"] = closed.no_forward(path, type(module).__name__)
    own["__deepcopy__"] = own["__reduce_ex__"] = closed.no_copy(path)
    own["_apply"] = closed.unchanged(made, path, _kinds(module, device))
    own["to_empty"] = closed.no_empty(path)
    if isinstance(module, ParametrizationList):
        originals = (*vars(module)["_parameters"], *vars(module)["_buffers"])
        own["right_inverse"] = closed.no_right_inverse(path, originals)


def _kinds(module: nn.Module, device: str) -> frozenset[closed.Kind]:
    """Return dtype and device type of all tensors of a module, including those of other ranks."""
    tensors = (*module.parameters(), *module.buffers())
    return frozenset((tensor.dtype, device) for tensor in tensors)


def _twin(value: Any, twins: Mapping[int, Any]) -> Any:
    """Return the value with the model's modules, their methods and tensors replaced by the new ones."""
    if id(value) in twins:
        return twins[id(value)]
    if isinstance(value, MethodType) and id(value.__self__) in twins:
        return MethodType(value.__func__, twins[id(value.__self__)])
    if type(value) in (list, tuple, set):
        return type(value)(_twin(item, twins) for item in value)
    if type(value) is dict:
        return {key: _twin(item, twins) for key, item in value.items()}
    return value


def like_a_sequence(kind: type, model: type) -> type:
    """Return `kind` with the methods of a `model` that has a length or items (`nn.Sequential`)."""

    def forwarded(name: str) -> Any:
        return lambda self, *args: getattr(self._root, name)(*args)

    had = [name for name in SEQUENCE if hasattr(model, name)]
    if not had:
        return kind
    methods: dict[str, Any] = {name: forwarded(name) for name in had}
    place = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), {**methods, **place})
