"""Handles what forward leaves in the modules: new buffers are results, fake tensors are removed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Set
from typing import Any

import torch
from torch import nn

from autopar.capture import _torch
from autopar.errors import CaptureError
from autopar.request.derived import derived

ByProduct = tuple[nn.Module, str, torch.Tensor]
"""A module, an attribute of it that forward filled, and the tensor in it."""


class AssignedBuffers:
    """Buffers that forward replaces by assignment: ``self.steps = self.steps + 1``.

    The functional call restores the old tensors when it ends, so the new ones are read just before.
    A parameter that is replaced in this way raises `CaptureError`: the next step would have the old
    one.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before: dict[str, torch.Tensor] = {}
        self._parameters: dict[str, torch.Tensor] = {}
        self.found: dict[str, torch.Tensor] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Within the context, record what the model's buffers become when the model runs."""

        def enter(module: nn.Module, args: Any) -> None:
            self._before = _buffers(module)
            self._parameters = _parameters(module)

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self._compare(_buffers(module))
            _refuse_replaced(self._parameters, _parameters(module))

        hooks = [
            self._model.register_forward_pre_hook(enter),
            self._model.register_forward_hook(leave),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _compare(self, after: dict[str, torch.Tensor]) -> None:
        for name in self._before.keys() ^ after.keys():
            raise CaptureError(
                f"forward adds or removes the buffer {name!r}, so the model is a different one "
                "after each step. Register it in __init__ with its final shape."
            )
        for name, before in self._before.items():
            now = after[name]
            if now is before:
                continue
            if (now.shape, now.dtype) != (before.shape, before.dtype):
                raise CaptureError(
                    f"forward assigns a tensor of shape {tuple(now.shape)} and dtype {now.dtype} "
                    f"to the buffer {name!r} of shape {tuple(before.shape)} and dtype "
                    f"{before.dtype}; keep shape and dtype."
                )
            self.found[name] = now


def _parameters(module: nn.Module) -> dict[str, torch.Tensor]:
    # Within the functional call they are plain tensors, but `named_parameters` still returns them.
    return dict(module.named_parameters(remove_duplicate=False))


def _refuse_replaced(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> None:
    for name, now in after.items():
        if name in before and now is not before[name]:
            raise CaptureError(
                f"forward replaces the parameter {name!r}, so each step depends on the one "
                "before, and an optimizer keeps the parameter that it was created with. Compute "
                "with a tensor of another name, or change the parameter in the training loop, "
                "under torch.no_grad() and in place."
            )


def _buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    return dict(module.named_buffers())


@contextlib.contextmanager
def clean_attributes(model: nn.Module) -> Iterator[list[ByProduct]]:
    """Remove traced tensors that forward stored in the user's modules.

    A tensor attribute that forward replaces is state between steps, which a graph can represent
    only for buffers: it raises `CaptureError`. An attribute that was empty is a by-product of one
    call. It is listed, and becomes empty again.
    """
    left: list[ByProduct] = []
    before = {path: dict(vars(module)) for path, module in model.named_modules()}
    # What a hook computes again before each forward is no state.
    kept = {path: derived(module) for path, module in model.named_modules()}
    buffers = _buffers(model).keys()
    try:
        yield left
    finally:
        _drop_buffers(model, buffers)
    for path, module in model.named_modules():
        for key, value in list(vars(module).items()):
            if not _torch.is_fake(value) or value is before[path].get(key):
                continue
            name = f"{path}.{key}" if path else key
            if key in kept.get(path, ()):
                vars(module)[key] = before[path][key]
                continue
            was = before[path].get(key)
            if isinstance(was, torch.Tensor) and not _torch.is_fake(was):
                vars(module)[key] = before[path][key]
                raise CaptureError(
                    f"forward replaces the tensor attribute {name!r}, so each step depends on "
                    "the one "
                    f"before. Make it a buffer: self.register_buffer({key!r}, ...)."
                )
            left.append((module, key, value))
            if key in before[path]:
                vars(module)[key] = before[path][key]
            else:
                del vars(module)[key]


def _drop_buffers(model: nn.Module, kept: Set[str]) -> None:
    """Empty the buffers that a failed capture has filled."""
    for name in _buffers(model).keys() - kept:
        path, _, key = name.rpartition(".")
        setattr(model.get_submodule(path), key, None)
