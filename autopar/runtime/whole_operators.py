"""Operators on parameters that DTensor lacks or refuses: computed on whole tensors, on every rank.

Results are replicated DTensors.  Plain values that are copied into a parameter are those of the first
rank of its mesh.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from autopar.runtime import _torch, agreement
from autopar.runtime.parts import Part, refuse_write

aten = torch.ops.aten
LACKED = (
    aten._unique2.default, aten.renorm.default, aten.nonzero.default, aten.allclose.default,
)  # fmt: skip
"""Operators without a rule in DTensor, whose results are new tensors or numbers."""
LACKED_IN_PLACE = (aten.renorm_.default,)
WRITES = (aten.copy_.default, aten.fill_.Tensor, aten.fill_.Scalar)
"""Writes, which Python's ``p[0] = 1`` makes into a view of `p` that it creates itself."""
FLATTENS = (aten.view.default, aten._unsafe_view.default)


def on_whole(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator on whole tensors; its results are replicated."""
    like = args[0]
    _meet(operator, like)
    made = operator(*map(_whole, args), **{key: _whole(each) for key, each in kwargs.items()})
    if isinstance(made, tuple):
        return tuple(_replicated(each, like) for each in made)
    return _replicated(made, like)


def in_place(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator in place on the whole tensor, and keep this rank's part."""
    tensor = args[0]
    _meet(operator, tensor)
    whole = _whole(tensor).clone()
    operator(whole, *map(_whole, args[1:]), **kwargs)
    cut = distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None)
    _torch.local_of(tensor).copy_(_torch.local_of(cut))
    return tensor


def written(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a write; refuse one into a gathered copy, and distribute plain values."""
    tensor = args[0]
    if isinstance(tensor, Part):
        refuse_write(operator.__name__)
    if operator is aten.copy_.default and not isinstance(args[1], DTensor):
        _meet(operator, tensor)
        values = args[1].to(tensor.device, tensor.dtype).expand(tensor.shape).contiguous()
        cut = distribute_tensor(values, tensor.device_mesh, tensor.placements)
        _torch.local_of(tensor).copy_(_torch.local_of(cut))
        return tensor
    if operator is aten.fill_.Tensor:
        _torch.local_of(tensor).fill_(_whole(args[1]))
        return tensor
    return _torch.unhandled(operator, args, kwargs)


def flattened(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a view; of uneven shards, which DTensor cannot flatten, a read-only copy is gathered."""
    tensor = args[0]
    try:
        return _torch.unhandled(operator, args, kwargs)
    except RuntimeError as error:
        if "unevenly sharded" not in str(error) or type(tensor) is not DTensor:
            raise
    _meet(operator, tensor)
    made = operator(_whole(tensor), *args[1:], **kwargs)
    return _torch.dtensor(made, _replicated(made, tensor)._spec, Part)


def _meet(operator: Any, tensor: DTensor) -> None:
    """Raise, instead of waiting for ever, if other ranks do not call the operator; not within stages."""
    if tensor.device_mesh.size() == dist.get_world_size():
        agreement.begin(f"{operator} on a parameter", meet=True)


def _whole(value: Any) -> Any:
    if not isinstance(value, DTensor):
        return value
    return DTensor.full_tensor(_torch.dtensor(_torch.local_of(value).detach(), value._spec))


def _replicated(made: Any, like: DTensor) -> Any:
    if not isinstance(made, torch.Tensor):
        return made
    mesh = like.device_mesh
    return _torch.dtensor(made, _torch.spec(mesh, (Replicate(),) * mesh.ndim, made))
