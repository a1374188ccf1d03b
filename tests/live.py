"""Counts live bytes: every storage that some operator made and that somebody still holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Inside, storages of results are noted; `nbytes` adds up those that are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        before = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if _is_plain(t)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if _is_plain(tensor) and tensor.untyped_storage()._cdata not in before:
                storage = tensor.untyped_storage()
                self._storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return result

    @property
    def nbytes(self) -> int:
        """Bytes that are alive now."""
        return sum(size for ref, size in self._storages.values() if not ref.expired())


def _is_plain(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and type(value) is torch.Tensor
