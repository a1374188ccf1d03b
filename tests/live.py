"""Counts live bytes, in two ways that know nothing of plans.

`LiveBytes` looks at every storage that some operator made and that somebody still holds: the tensors of
a step.  `Allocations` asks PyTorch's allocator, which also knows what kernels take for themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.autograd.profiler import profile
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autopar.ops.experts import _gradients, _mixture

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it tells of every profile that begins and ends


class LiveBytes(TorchDispatchMode):
    """Inside, storages of results are noted; `nbytes` adds up those that are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0
        """The most bytes that were alive after some operator."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # what it does with its parts comes here again
        adds_in_place = func is torch.ops.aten.add.Tensor and _is_alone(args[0])
        before = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if _is_plain(t)}
        result = self._run(func, args, kwargs or {})
        self.count(t for t in tree_leaves(result) if _is_plain(t) and _cdata(t) not in before)
        if not adds_in_place:
            self.most = max(self.most, self.nbytes)
        return result

    def _run(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """An operator; of one written in Python, what it calls as well."""
        inside = {
            _mixture._opoverload: _mixture._init_fn,
            _gradients._opoverload: _gradients._init_fn,
        }
        if func not in inside:
            return func(*args, **kwargs)
        with self:
            return inside[func](*args, **kwargs)

    def count(self, tensors: Iterable[torch.Tensor]) -> None:
        """These too, which nothing here made: parameters."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())

    @property
    def nbytes(self) -> int:
        """Bytes that are alive now."""
        gone = [key for key, (ref, _) in self._storages.items() if ref.expired()]
        for key in gone:
            del self._storages[key]
        return sum(size for _, size in self._storages.values())


def _is_alone(first: object) -> bool:
    """Whether autograd would add to this gradient in place, had it not been handed to Python.

    It does where nobody else has the storage; here its tensor and our look at it are two.  What a block
    adds up when it runs again in the backward is no gradient: there gradients are enabled.
    """
    in_backward = torch._C._current_autograd_node() is not None and not torch.is_grad_enabled()
    if not in_backward or not _is_plain(first):
        return False
    assert isinstance(first, torch.Tensor)
    return bool(torch._C._storage_Use_Count(_cdata(first)) <= 2)


class Allocations:
    """Inside, the CPU allocator's bytes are followed, from those that are there at the beginning."""

    def __init__(self, there: int) -> None:
        self.nbytes = there
        """Bytes at the end."""
        self.most = there
        """At the highest point."""
        self._profile = profile(use_cpu=True, profile_memory=True)

    def __enter__(self) -> Allocations:
        self._profile.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._profile.__exit__(*raised)
        events = self._profile.kineto_results.events()
        moves = [event for event in events if event.name() == "[memory]"]
        for event in sorted(moves, key=lambda event: event.start_ns()):
            self.nbytes += event.nbytes()
            self.most = max(self.most, self.nbytes)


def _cdata(tensor: torch.Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


def _is_plain(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and type(value) is torch.Tensor
