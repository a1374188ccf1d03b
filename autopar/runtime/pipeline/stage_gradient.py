"""The gradient of a parameter of one stage: its norm is not the model's."""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import DTensor

from autopar.errors import InputError
from autopar.runtime import _torch


class StageGradient(DTensor):
    """A DTensor that refuses to be clipped with the gradients of this rank's stages alone."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _torch.NORMS:
            raise InputError(
                "This is the norm of the gradients of this rank's stages alone; those of other stages "
                "lie on others. Call parallel.clip_grad_norm_(max_norm) instead of "
                "torch.nn.utils.clip_grad_norm_: it clips by the whole model's norm, and returns it."
            )
        return _torch.plain_function(func, types, args, kwargs or {})
