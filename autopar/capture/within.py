"""What an operator makes and lets go of while it runs, forward and backward, besides its results.

An operator of several kernels (a loss, a normalisation written out) has tensors of its own: seen by
running it on fake tensors, every storage being counted as long as somebody holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from autopar.capture import _torch


class _Alive(_torch.TorchDispatchMode):
    """Bytes of the storages that kernels made and that are still there; `most` at any time."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = {_torch.storage_id(tensor) for tensor in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            key = _torch.storage_id(tensor)
            if key not in given:
                storage = tensor.untyped_storage()
                self._known[key] = (StorageWeakRef(storage), storage.nbytes())
        self.most = max(self.most, self.nbytes)
        return result

    @property
    def nbytes(self) -> int:
        """Bytes that are there now."""
        for key in [key for key, (storage, _) in self._known.items() if storage.expired()]:
            del self._known[key]
        return sum(nbytes for _, nbytes in self._known.values())


def within(
    call: Callable[[], Any], leaves: Sequence[torch.Tensor], results: int
) -> tuple[int, int]:
    """Bytes beside results and what is saved, in the forward; beside those and gradients, backward.

    Under a fake mode; `leaves` are the operands with a gradient, `results` the number of outputs.
    """
    with torch.enable_grad(), _Alive() as alive:
        outputs = _tensors(call())[:results]
        there = alive.nbytes
        forward = alive.most - there
        outputs = [tensor for tensor in outputs if tensor.requires_grad]
        if not outputs or not leaves:
            return forward, 0
        given = [torch.empty_like(tensor) for tensor in outputs]
        there = alive.most = alive.nbytes
        made = torch.autograd.grad(outputs, leaves, given, allow_unused=True)
        size = sum(tensor.untyped_storage().nbytes() for tensor in made if tensor is not None)
        return forward, max(0, alive.most - there - size)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in _torch.tree_leaves(values) if isinstance(value, torch.Tensor)]
