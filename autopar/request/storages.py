"""Refuses models whose tensors share memory, since a parallel model gives each tensor its own.

A tied parameter is one `nn.Parameter` under two names, and stays one.  But if two parameters share a
storage, or a buffer is a view of a parameter, a write to one changes the other in one process.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations

import torch
from torch import nn

from autopar.errors import InputError
from autopar.request.derived import derived


def refuse_shared_memory(model: nn.Module) -> None:
    """Raise `InputError` if parameters, buffers or tensor attributes share elements."""
    of_storage: defaultdict[tuple[str, int], dict[int, tuple[str, torch.Tensor]]]
    of_storage = defaultdict(dict)
    for name, tensor in _tensors(model).items():
        if type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            if tensor.numel():
                of_storage[str(tensor.device), _key(storage)].setdefault(id(tensor), (name, tensor))
    for there in of_storage.values():
        for (one, first), (other, second) in combinations(there.values(), 2):
            if _overlap(first, second):
                raise InputError(_message(model, one, first, other, second))


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    attributes = {
        f"{path}.{key}".lstrip("."): value
        for path, module in model.named_modules()
        for key, value in vars(module).items()
        # A hook recomputes these before each forward, so sharing memory does no harm.
        if isinstance(value, torch.Tensor) and key not in derived(module)
    }
    return {**dict(model.named_parameters()), **dict(model.named_buffers()), **attributes}


def _key(storage: torch.UntypedStorage) -> int:
    """Return a number that identifies a storage; meta storages have no address."""
    return storage.data_ptr() or hash(storage)


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one storage share any byte."""
    (first, last), (begin, end) = _extent(one), _extent(other)
    if last <= begin or end <= first:
        return False
    if one.is_contiguous() or other.is_contiguous() or one.dtype != other.dtype:
        return True
    size = one.element_size()
    marks = torch.zeros(max(last, end) // size, dtype=torch.bool)
    marks.as_strided(one.shape, one.stride(), one.storage_offset()).fill_(True)
    return bool(marks.as_strided(other.shape, other.stride(), other.storage_offset()).any())


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the offsets of the first byte in the storage and of the byte after the last."""
    size = tensor.element_size()
    span = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.storage_offset()
    return int(start * size), int((start + span + 1) * size)


def _message(
    model: nn.Module, one: str, first: torch.Tensor, other: str, second: torch.Tensor
) -> str:
    start = f"{one!r} {list(first.shape)} and {other!r} {list(second.shape)} share memory"
    both = isinstance(first, nn.Parameter) and isinstance(second, nn.Parameter)
    if both and first.shape == second.shape:
        return (
            f"{start}, but are two parameters: each has a gradient and an update of its own. To "
            f"tie them, make them one before autopar.parallelize: model.{other} = model.{one}; "
            f"to untie them: model.{other} = torch.nn.Parameter(model.{other}.detach().clone())."
        )
    kind = (
        "torch.nn.Parameter(...)" if isinstance(second, nn.Parameter) else "a buffer or attribute"
    )
    return (
        f"{start}: what writes to one changes the other, and on several ranks each has its own "
        f"memory. Separate them before autopar.parallelize: make {other!r} {kind} of "
        f"model.{other}.detach().clone(); or compute it in forward from the other."
    )
