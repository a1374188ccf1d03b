"""Float64 without holes: models that cast to float32 inside cast to float64 instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class Wide(TorchFunctionMode):
    """Inside, `.float()` and ``dtype=torch.float32`` mean float64."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.float:
            return args[0].double()
        return func(*map(_wide, args), **{k: _wide(v) for k, v in (kwargs or {}).items()})


def _wide(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
