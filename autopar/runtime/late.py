"""Tensors that a collective is still filling: whoever reads one waits for it.

A reduce-scatter of weight gradients runs beside the rest of the backward.  Autograd hands its results to
the leaves without reading them; what does read one, such as a sum with another gradient, waits first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from autopar.runtime import _torch


class Pending:
    """A collective on its way; `inputs` stay alive until it is done."""

    def __init__(self, wait: Callable[[], object], inputs: Sequence[torch.Tensor]) -> None:
        self._wait: Callable[[], object] | None = wait
        self._inputs = inputs

    def wait(self) -> None:
        """Wait for it, once."""
        if self._wait is not None:
            self._wait()
            self._wait, self._inputs = None, ()


class Lane:
    """The collectives of one loop of blocks in a backward: one is on its way at a time."""

    def __init__(self) -> None:
        self._last: Pending | None = None

    def enter(self) -> None:
        """Wait for the one that is on its way."""
        if self._last is not None:
            self._last.wait()

    def put(self, pending: Pending) -> None:
        """Remember the one that was started."""
        self._last = pending


def ready(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself, once nothing fills it any more."""
    return tensor.ready() if isinstance(tensor, Late) else tensor


class Late(torch.Tensor):
    """A result of a pending collective.  Any operator but autograd's hand-over waits for it."""

    _made: torch.Tensor
    pending: Pending

    @staticmethod
    def __new__(cls, made: torch.Tensor, pending: Pending) -> Late:
        late: Late = _torch.wrapper(cls, made)
        late._made, late.pending = made, pending
        return late

    def ready(self) -> torch.Tensor:
        """Wait, and return the plain tensor."""
        self.pending.wait()
        return self._made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
    ) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0]._made, args[0].pending)
        args, kwargs = _torch.tree_map_only(Late, Late.ready, (args, kwargs or {}))
        return func(*args, **kwargs)
