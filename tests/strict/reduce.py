"""Reductions of all ranks' tensors, in the order of the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import torch

HOW: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "SUM": torch.add, "AVG": torch.add, "PRODUCT": torch.mul, "MAX": torch.maximum, "MIN": torch.minimum,
    "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor,
}  # fmt: skip


def reduced(parts: Sequence[torch.Tensor], how: str) -> torch.Tensor:
    """One tensor; booleans are added as NCCL does: by `or`."""
    if parts[0].dtype == torch.bool:
        return reduce(
            {"SUM": torch.logical_or, "MAX": torch.logical_or}.get(how, torch.logical_and), parts
        )
    total = reduce(HOW[how], parts)
    return total / len(parts) if how == "AVG" else total
