"""Measures what an operator allocates and frees while it runs, forward and backward.

An operator of several kernels (a loss, a composite normalisation) has temporary tensors. It is run
on fake tensors, and every storage is counted as long as something references it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from autopar.capture import _torch
from autopar.ops.experts import SHOWN


def checks_values(target: object) -> bool:
    """Return whether an operator only compares values, as `cov` does before it warns of too few samples.

    For a tensor without values the answer is False, and there is no warning.
    """
    return target is torch.ops.aten.equal.default


class _Alive(_torch.TorchDispatchMode):
    """Tracks bytes of storages that kernels made and that still exist; `most` is the peak."""

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
        if checks_values(func):
            return False
        in_place = _torch.sums_in_place(func, args)
        given = {_torch.storage_id(tensor) for tensor in _tensors((args, kwargs))}
        result = self._run(func, args, kwargs or {})
        for tensor in _tensors(result):
            key = _torch.storage_id(tensor)
            if key not in given:
                storage = tensor.untyped_storage()
                self._known[key] = (StorageWeakRef(storage), storage.nbytes())
        if not in_place:
            self.most = max(self.most, self.nbytes)
        return result

    def _run(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run a kernel; for a kernel of autopar's, run the operators that it consists of."""
        if func not in SHOWN:
            return func(*args, **kwargs)
        with self:
            return SHOWN[func](*args, **kwargs)

    @property
    def nbytes(self) -> int:
        """Bytes that exist now."""
        for key in [key for key, (storage, _) in self._known.items() if storage.expired()]:
            del self._known[key]
        return sum(nbytes for _, nbytes in self._known.values())


@dataclass(frozen=True, slots=True)
class Made:
    """Temporary bytes of an operator.

    `forward_nbytes` excludes results and saved tensors; `backward_nbytes` excludes saved tensors
    and gradients. Of the backward's bytes, `early_nbytes` are freed before the peak if nothing else
    holds the incoming gradients. `passes` has for each leaf the output whose gradient shares memory
    with the leaf's gradient, if any. `views` has for each leaf whether its gradient is a view.
    """

    forward_nbytes: int
    backward_nbytes: int
    early_nbytes: int
    passes: tuple[int | None, ...]
    views: tuple[bool, ...]


class _Arriving(torch.autograd.Function):
    """A node after an operator's outputs that makes their gradients and does not hold them."""

    @staticmethod
    def forward(ctx: Any, *outputs: torch.Tensor) -> torch.Tensor:
        ctx.forms = [(x.shape, x.dtype) for x in outputs]
        return torch.empty(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        return tuple(torch.empty(shape, dtype=dtype) for shape, dtype in ctx.forms)


def within(
    call: Callable[[], Any], leaves: Sequence[torch.Tensor], results: int, arriving: Sequence[int]
) -> Made:
    """Return what an operator allocates in both passes. Call it under a fake mode.

    `leaves` are the operands with a gradient, `results` is the number of outputs, and gradients
    arrive at the outputs `arriving`.
    """
    with torch.enable_grad(), _Alive() as alive:
        made = _tensors(call())[:results]
        forward = alive.most - alive.nbytes
        places = [place for place in arriving if made[place].requires_grad]
        outputs = [made[place] for place in places]
        if not outputs or not leaves:
            return Made(forward, 0, 0, (None,) * len(leaves), (False,) * len(leaves))
        given = [torch.empty_like(tensor) for tensor in outputs]
        there = alive.most = alive.nbytes
        back = torch.autograd.grad(outputs, leaves, given, allow_unused=True)
        source = {_torch.storage_id(x): place for x, place in zip(given, places, strict=True)}
        passes = tuple(None if x is None else source.get(_torch.storage_id(x)) for x in back)
        own = {
            _torch.storage_id(x): x.untyped_storage().nbytes()
            for x, passed in zip(back, passes, strict=True)
            if x is not None and passed is None
        }
        backward = max(0, alive.most - there - sum(own.values()))
        views = tuple(x is not None and x._is_view() for x in back)
    come = sum(x.untyped_storage().nbytes() for x in given)
    least = _least_back(call, leaves, places) - come - sum(own.values())
    return Made(forward, backward, max(0, backward - least), passes, views)


def _least_back(
    call: Callable[[], Any], leaves: Sequence[torch.Tensor], places: Sequence[int]
) -> int:
    """Return the peak bytes of a backward with its gradients, if nothing else holds incoming ones."""
    alive = _Alive()
    with torch.enable_grad(), alive:
        made = _tensors(call())
        loss: torch.Tensor = _Arriving.apply(*(made[place] for place in places))
        there = alive.most = alive.nbytes
        torch.autograd.grad(loss, leaves, allow_unused=True)
    # The gradient of the scalar, from which the backward starts, must not count.
    return alive.most - there - loss.nbytes


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in _torch.tree_leaves(values) if isinstance(value, torch.Tensor)]
