"""What every rank does to compare two ways of moving a cut from one dim to another."""

from __future__ import annotations

from unittest.mock import patch

import torch
import torch.distributed as dist

from autopar.ir.placement import S
from autopar.runtime import _torch, _typed


def exchanged(source: int, target: int) -> None:
    """In lists of tensors, and in one tensor: the same values, and the same gradients."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    x = torch.randn(6, 12, 6, generator=generator, dtype=torch.float64)
    found = []
    for lists in (True, False):
        leaf = x.clone().requires_grad_()
        with patch.object(_torch, "exchanges_lists", lambda _, lists=lists: lists):
            made = _typed.step(leaf, dist.group.WORLD, S(source), S(target))
            made.square().sum().backward()
        found.append((made.detach(), leaf.grad))
    assert found[0][0].shape != x.shape
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
