"""Gathered tensors that are not kept: what a block hands on is not kept by its readers either."""

from __future__ import annotations

import torch

from autopar.runtime import regather


def gathers_again(returned: bool) -> int:
    """How often a tensor is gathered again that one block gathers and that is saved outside of it."""
    calls = []
    shard = torch.ones(2, requires_grad=True)

    def gather(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return torch.cat([x, x])

    with regather.regathering():
        with regather.scope() as leaving:
            whole = torch.cat([shard, shard])
            regather.remember(whole, shard, gather)
            result = leaving((whole,) if returned else (whole + 1,))
        loss = whole.square().sum() + sum(x.sum() for x in result)
    loss.backward()
    assert torch.equal(shard.grad, torch.full((2,), 6.0))
    return len(calls)


def test_what_leaves_a_block_is_gathered_again() -> None:
    assert gathers_again(returned=True) == 1


def test_what_stays_in_a_block_is_forgotten_there() -> None:
    assert gathers_again(returned=False) == 0
