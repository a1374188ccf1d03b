"""Records during tracing where the user wrote each operator: module path, file and line.

This takes one frame walk per torch call and no stack capture. Global module hooks maintain the
stack of modules.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

from autopar.capture import _torch
from autopar.capture.checks import passed
from autopar.capture.known import likely
from autopar.capture.selecting import Selections
from autopar.errors import CaptureError
from autopar.ir.graph import Origin

WHERE = "autopar_where"
GRADIENT, AROUND = "autopar_gradient", "autopar_around"
Watcher = Callable[[tuple[Any, ...], "FrameType | None"], None]
"""Called with the arguments of a torch function and the user's frame, before the function runs."""


def users_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame that is neither torch's code nor this package's."""
    while frame is not None and frame.f_code.co_filename.startswith(_torch.TORCH_FOLDERS):
        frame = frame.f_back
    return frame


def origin_at(frame: FrameType | None, module: str = "") -> Origin:
    """Return the origin of a frame."""
    if frame is None:
        return Origin(module)
    return located(module, frame.f_code.co_filename, frame.f_lineno)


def located(module: str, file: str, line: int) -> Origin:
    """Return an origin with its source text."""
    return Origin(module, file, line, linecache.getline(file, line).strip())


def location(origin: Origin) -> str:
    """Return a place as errors show it: file, line, source text and module."""
    place = f"{origin.file}:{origin.line}" if origin.file else "an unknown line"
    module = f" in module {origin.module!r}" if origin.module else ""
    return f"{place}{module}" + (f"\n    {origin.code}" if origin.code else "")


class Whereabouts(TorchFunctionMode):
    """Tags each new fx node with the module and the line that made it."""

    def __init__(self, model: nn.Module, watched: Mapping[Any, Watcher]) -> None:
        super().__init__()
        self._watched = watched
        self._names = {id(module): name for name, module in model.named_modules()}
        self._stack = [""]
        self._last: fx.Node | None = None
        self.failed: list[str] = []
        """The torch functions that raised, the outermost last."""
        self.of_buffers = False
        """Whether the last of them received only values of buffers."""
        self._hooks: list[Any] = []
        self._selections = Selections()

    @property
    def module(self) -> str:
        """Path of the module whose forward is running."""
        return self._stack[-1]

    def __enter__(self) -> Any:
        def enter(module: nn.Module, args: Any) -> None:
            self._stack.append(self._names.get(id(module), self._stack[-1]))

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self._stack.pop()

        self._hooks = [
            register_module_forward_pre_hook(enter),
            register_module_forward_hook(leave, always_call=True),
        ]
        return super().__enter__()

    def __exit__(self, *exc: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*exc)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        frame, around = sys._getframe(1), torch.is_grad_enabled()
        if func is torch.autograd.grad and (kwargs or {}).get("is_grads_batched"):
            place = location(origin_at(users_frame(frame)))
            raise CaptureError(
                f"torch.autograd.grad with is_grads_batched=True, at {place}\nis a torch.vmap, which "
                "cannot be captured. Take the gradients in a loop, one call for each entry of "
                "grad_outputs, and torch.stack them."
            )
        if func in self._watched:
            self._watched[func](args, users_frame(frame))
        truth = passed(func, args, frame)
        if truth is not None:
            return truth
        try:
            result = self._selections.answer(func, args, kwargs or {})
            if result is NotImplemented:
                result = func(*args, **(kwargs or {}))
        except Exception:
            self.failed.append(getattr(func, "__name__", ""))
            tensors = [x for x in _torch.tree_leaves(args) if isinstance(x, torch.Tensor)]
            self.of_buffers = bool(tensors) and all(likely(x) is not None for x in tensors)
            raise
        graph = _torch.graph_in_progress()
        if graph is not None:
            kept = _keeps_history(func, args, kwargs or {})
            self._tag(graph, frame, around, torch.is_grad_enabled() if kept is None else kept)
        return result

    def _tag(self, graph: fx.Graph, frame: FrameType | None, around: bool, gradient: bool) -> None:
        """Tag new nodes; `around`: whether autograd was on when the function was called."""
        newest = _torch.newest_node(graph)
        if newest is self._last or newest.op == "root":
            return
        frame = users_frame(frame)
        place = (self.module, frame.f_code.co_filename, frame.f_lineno) if frame else ("", "", 0)
        oldest = node = newest
        while node is not self._last and node.op != "root" and WHERE not in node.meta:
            node.meta[WHERE] = place
            node.meta[GRADIENT] = gradient
            oldest, node = node, _torch.previous_node(node)
        oldest.meta[AROUND] = around
        self._last = newest


def origin_of(node: fx.Node) -> Origin:
    """Return the origin that tracing recorded for a node."""
    place = node.meta.get(WHERE)
    return located(*place) if place else Origin()


def around(node: fx.Node) -> bool | None:
    """Return whether autograd was on before the node was made; None if that is not known.

    Switches of autograd are nodes of their own, but one inside a hook on saved tensors may be lost.
    """
    known: bool | None = node.meta.get(AROUND)
    return known


def under_gradient(node: fx.Node) -> bool:
    """Return whether autograd was on when the node was made; only this records inference mode."""
    return bool(node.meta.get(GRADIENT, True))


def _keeps_history(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool | None:
    """Return whether the gradients that `autograd.grad` takes can be differentiated.

    Return None for any other function.
    """
    if func is not torch.autograd.grad:
        return None
    return bool(kwargs.get("create_graph", args[4] if len(args) > 4 else False))
