"""What forward leaves behind in the modules: new buffers are results, fakes are cleaned up."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from autopar.capture import _torch
from autopar.errors import CaptureError


class AssignedBuffers:
    """Buffers that forward replaces by assignment: ``self.steps = self.steps + 1``.

    The functional call puts the old tensors back when it ends, so they are read as each module
    ends.
    """

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(m): name for name, m in model.named_modules() if _buffers(m)}
        self._before: dict[str, dict[str, Any]] = {}
        self.found: dict[str, torch.Tensor] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Record replaced buffers of every module that runs inside."""

        def enter(module: nn.Module, args: Any) -> None:
            if id(module) in self._names:
                self._before.setdefault(self._names[id(module)], _buffers(module))

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            if id(module) in self._names:
                self._compare(self._names[id(module)], module)

        hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _compare(self, path: str, module: nn.Module) -> None:
        after = _buffers(module)
        for key, before in self._before[path].items():
            now = after.get(key)
            name = f"{path}.{key}" if path else key
            if now is before:
                continue
            if not isinstance(now, torch.Tensor) or not isinstance(before, torch.Tensor):
                raise CaptureError(
                    f"forward of module {path!r} adds or removes the buffer {name!r}."
                )
            if (now.shape, now.dtype) != (before.shape, before.dtype):
                raise CaptureError(
                    f"forward of module {path!r} assigns a tensor of shape {tuple(now.shape)} "
                    "and dtype "
                    f"{now.dtype} to the buffer {name!r} of shape {tuple(before.shape)} and dtype "
                    f"{before.dtype}; keep shape and dtype."
                )
            self.found[name] = now


def _buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    return dict(module.named_buffers(recurse=False))


@contextlib.contextmanager
def clean_attributes(model: nn.Module) -> Iterator[None]:
    """Take traced tensors out of the user's modules again, where forward put some aside.

    A tensor attribute that forward replaces is state from step to step, which a graph knows only
    for buffers; an attribute that was empty before is a by-product of one call.
    """
    before = {path: dict(vars(module)) for path, module in model.named_modules()}
    yield
    for path, module in model.named_modules():
        for key, value in list(vars(module).items()):
            if not _torch.is_fake(value) or value is before[path].get(key):
                continue
            name = f"{path}.{key}" if path else key
            if isinstance(before[path].get(key), torch.Tensor):
                vars(module)[key] = before[path][key]
                raise CaptureError(
                    f"forward replaces the tensor attribute {name!r}, so each step depends on "
                    "the one "
                    f"before. Make it a buffer: self.register_buffer({key!r}, ...)."
                )
            if key in before[path]:
                vars(module)[key] = before[path][key]
            else:
                del vars(module)[key]
