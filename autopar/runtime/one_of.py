"""Chooses between tensors by a condition that an accelerator computes, without waiting for it."""

from __future__ import annotations

import torch


def one_of(condition: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return one of two tensors; only on accelerators, whose host must not wait, it is a copy."""
    if condition.device.type == "cpu":
        return first if condition else second
    return torch.where(condition, first, second)
