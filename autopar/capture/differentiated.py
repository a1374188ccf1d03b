"""Models whose forward takes gradients: derivatives in a loss, penalties on gradients, forces.

``torch.autograd.grad`` in a trace runs the backward formulas, which are operators like others and can be
differentiated again.  They read what autograd kept: operands, results, and what operators of several
kernels made inside.  So such a model is traced anew in those operators that autograd has formulas for,
and a tensor that autograd hands out again is known by its memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

import torch

from autopar.capture import _torch
from autopar.capture.where import Watcher


class Differentiates(BaseException):
    """The model takes a gradient in forward; no `except Exception` of its own may stop this."""


def refuse_gradients() -> Mapping[Any, Watcher]:
    """Ends a trace that would not understand what a gradient reads."""

    def taken(args: tuple[Any, ...], frame: FrameType | None) -> None:
        raise Differentiates

    return {torch.autograd.grad: taken}


class Differentiated:
    """Answers for the operators of a trace in which gradients are taken."""

    def __init__(self) -> None:
        # With the tensor: a freed storage's id would be the next one's, too.
        self._tracked: dict[Hashable, tuple[Any, torch.Tensor]] = {}

    def answering(self) -> AbstractContextManager[None]:
        """Within, a trace has its answers from here."""
        return _torch.operators_answered(self._answer)

    def watchers(self) -> Mapping[Any, Watcher]:
        """Gradients may be taken."""
        return {}

    def _answer(
        self,
        tracer: _torch.Tracer,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: _torch.Run,
    ) -> Any:
        """The operator's result, recorded in the trace, by its parts where it has some."""
        operands = _fakes((args, kwargs))
        for operand in operands:
            self._find(tracer, operand)
        if any(operand.requires_grad for operand in operands):
            result = run.in_parts()
            if result is not NotImplemented:
                return result
        result = run()
        for made in _fakes(result):
            self._find(tracer, made)
        return result

    def _find(self, tracer: _torch.Tracer, tensor: torch.Tensor) -> None:
        """Let a tensor that autograd kept stand for the one that was recorded."""
        key = _place(tensor)
        if tensor in tracer.tensor_tracker:
            self._tracked.setdefault(key, (tracer.tensor_tracker[tensor], tensor))
            return
        # What a factory is asked to make with a gradient gets it behind the trace's back.
        keys = [key, _place(tensor, False)] if tensor.is_leaf else [key]
        for key in keys:
            if key in self._tracked:
                tracer.tensor_tracker[tensor], _ = self._tracked[key]
                return


def _fakes(values: Any) -> list[torch.Tensor]:
    return [value for value in _torch.tree_leaves(values) if _torch.is_fake(value)]


def _place(tensor: torch.Tensor, gradient: bool | None = None) -> Hashable:
    """Equal for two looks at the same entries; what has no gradient is not what has one."""
    geometry = tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype
    flows = tensor.requires_grad if gradient is None else gradient
    return _torch.storage_id(tensor), geometry, flows
