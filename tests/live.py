"""Counts live bytes: every storage that some operator made and that somebody still holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
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


def _cdata(tensor: torch.Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


def _is_plain(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and type(value) is torch.Tensor
