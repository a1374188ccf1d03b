"""Counts live bytes, in two ways that know nothing of plans.

`LiveBytes` looks at every storage that some operator made and that somebody still holds; `Allocations`
asks PyTorch's allocator.  The first sees tensors only, and while it looks autograd adds gradients up out
of place; the second sees a step as it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.autograd.profiler import profile
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


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
        before = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if _is_plain(t)}
        result = func(*args, **(kwargs or {}))
        self.count(t for t in tree_leaves(result) if _is_plain(t) and _cdata(t) not in before)
        self.most = max(self.most, self.nbytes)
        return result

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
