"""Captures models whose forward takes gradients: derivatives in a loss, gradient penalties, forces.

In a trace, ``torch.autograd.grad`` runs the backward formulas. They consist of ordinary operators,
which can be differentiated again. They read what autograd saved: operands, results, and
intermediate results of composite operators. Such a model is therefore traced again in terms of the
operators for which autograd has formulas. A tensor that autograd returns from its saved tensors is
identified by its memory.
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
    """Raised when forward takes a gradient; an `except Exception` of the model must not catch it."""


def refuse_gradients() -> Mapping[Any, Watcher]:
    """Return a watcher that ends a trace which cannot follow what a gradient reads."""

    def taken(args: tuple[Any, ...], frame: FrameType | None) -> None:
        raise Differentiates

    return {torch.autograd.grad: taken}


class Differentiated:
    """Returns the results of operators in a trace in which gradients are taken."""

    def __init__(self) -> None:
        # Keeps the tensor alive: the id of a freed storage could be reused.
        self._tracked: dict[Hashable, tuple[Any, torch.Tensor]] = {}

    def answering(self) -> AbstractContextManager[None]:
        """Within the context, a trace gets the results of operators from this object."""
        return _torch.operators_answered(self._answer)

    def watchers(self) -> Mapping[Any, Watcher]:
        """Return no watchers: gradients may be taken."""
        return {}

    def _answer(
        self,
        tracer: _torch.Tracer,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: _torch.Run,
    ) -> Any:
        """Return the operator's result, recorded in the trace; a composite operator is decomposed."""
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
        """Map a tensor that autograd saved to the recorded tensor in the same memory."""
        key = _place(tensor)
        if tensor in tracer.tensor_tracker:
            self._tracked.setdefault(key, (tracer.tensor_tracker[tensor], tensor))
            return
        # A factory gets its requires_grad argument applied after the trace recorded the result.
        keys = [key, _place(tensor, False)] if tensor.is_leaf else [key]
        for key in keys:
            if key in self._tracked:
                tracer.tensor_tracker[tensor], _ = self._tracked[key]
                return


def _fakes(values: Any) -> list[torch.Tensor]:
    return [value for value in _torch.tree_leaves(values) if _torch.is_fake(value)]


def _place(tensor: torch.Tensor, gradient: bool | None = None) -> Hashable:
    """Return a key that is equal for tensors over the same entries.

    It differs between a tensor with a gradient and one without.
    """
    geometry = tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype
    flows = tensor.requires_grad if gradient is None else gradient
    return _torch.storage_id(tensor), geometry, flows
