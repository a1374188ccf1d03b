"""Reads a sharded tensor as a Python number; torch alone would return each rank's part."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate

from autopar.errors import InputError
from autopar.runtime import agreement
from autopar.runtime.operators import _torch as dispatch
from autopar.runtime.pipeline.stage_tensor import StageTensor

NUMBER = torch.ops.aten._local_scalar_dense.default
"""The operator behind ``.item()``, ``float()``, ``bool()`` and formatting."""


def whole_number(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], stage: bool) -> Any:
    """Return the number that one process would read; all ranks have to call it, which is checked.

    With `stage`, it is refused for sharded tensors, as ranks of other stages hold other parameters, and
    where it is read of several parameters.
    """
    tensor = args[0]
    assert isinstance(tensor, DTensor)
    if isinstance(tensor, StageTensor):
        tensor.read(is_decision=tensor.dtype is torch.bool)
    if all(isinstance(kind, Replicate) for kind in tensor.placements):
        return dispatch.unhandled(operator, args, kwargs)
    if isinstance(tensor, StageTensor) and tensor.origin.loops.apart:
        return tensor.full_tensor().item()  # all ranks of the stage read it, one by one
    if stage:
        raise InputError(
            "A number (.item(), float(), bool()) is read from a tensor of which this rank holds "
            "only a shard. Call .full_tensor() first, on every rank of the stage: "
            "p.full_tensor().norm().item()."
        )
    agreement.begin("a number read from a sharded tensor (.item(), float())", meet=True)
    return tensor.full_tensor().item()
