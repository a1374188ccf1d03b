"""What every rank does where gradients are kept beyond their step, or not."""

from __future__ import annotations

import torch
from torch import nn

import autopar


class Squares(nn.Module):
    """Two layers and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 4)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(input))).square().mean()


def kept(preset: str) -> None:
    """A bucket's memory serves every step; what somebody holds of it stays as it is."""
    torch.manual_seed(0)
    example = {"input": torch.randn(8, 8, dtype=torch.float64)}
    parallel = autopar.parallelize(Squares().double(), 2, example, preset=preset)

    def stepped(factor: float) -> list[int]:
        parallel.zero_grad()
        parallel(input=factor * example["input"]).backward()
        buffers = [bucket._buffer for bucket in parallel._reducer.buckets]
        return [buffer.data_ptr() for buffer in buffers if buffer is not None]

    first, again = stepped(1.0), stepped(2.0)
    assert again == first, "a bucket takes memory anew in every step"
    assert bool(first) is (preset == "ddp"), "what is scattered is freed"
    held = [parameter.grad.to_local().view(-1) for parameter in parallel.parameters()]
    before = [each.clone() for each in held]
    if preset == "ddp":
        assert not set(stepped(3.0)) & set(first)
    else:
        stepped(3.0)
    for each, was in zip(held, before, strict=True):
        assert torch.equal(each, was)
    assert not torch.equal(next(parallel.parameters()).grad.to_local().view(-1), before[0])
