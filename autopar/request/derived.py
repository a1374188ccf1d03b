"""Finds tensors that a hook computes from parameters before each forward and stores on the module."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm


def derived(module: nn.Module) -> tuple[str, ...]:
    """Return the attributes that the hooks of `weight_norm`, `spectral_norm` and pruning set."""
    names: list[str] = []
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, (WeightNorm, SpectralNorm)):
            names.append(hook.name)
        elif isinstance(hook, BasePruningMethod):
            names.append(hook._tensor_name)
    return tuple(name for name in names if isinstance(vars(module).get(name), torch.Tensor))
