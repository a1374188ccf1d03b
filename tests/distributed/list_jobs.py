"""Operators that return a list, which may have one tensor in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.habits.batch_jobs import against_one


@torch.library.custom_op("listed::doubled", mutates_args=())
def doubled(xs: list[torch.Tensor]) -> list[torch.Tensor]:
    """An operator of the user's own."""
    return [2 * x for x in xs]


@doubled.register_fake
def _(xs: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty_like(x) for x in xs]


def _backward(ctx: Any, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    return [2 * gradient for gradient in gradients]


doubled.register_autograd(_backward)


class Single(torch.autograd.Function):
    """Returns a tuple of one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (2 * x,)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return 2 * gradients[0]


WAYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gradient": lambda x: torch.gradient(x, dim=1)[0],
    "gradients": lambda x: sum(torch.gradient(x, dim=(1, 2))),
    "split": lambda x: x.split((4,), 1)[0],
    "split of a number": lambda x: torch.ops.aten.split.Tensor(x, 4, 1)[0],
    "chunk": lambda x: x.chunk(1, 2)[0],
    "tensor_split": lambda x: torch.tensor_split(x, 1, 1)[0],
    "unbind": lambda x: x[:, :1].unbind(1)[0][:, None],
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x)[0],
    "meshgrid": lambda x: x * torch.meshgrid(torch.arange(4.0), indexing="ij")[0],
    "custom": lambda x: torch.ops.listed.doubled([x])[0],
    "custom of two": lambda x: sum(torch.ops.listed.doubled([x, x + 1])),
    "function": lambda x: Single.apply(x)[0],
}


class Listed(nn.Module):
    """Three layers with such an operator between."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.way = WAYS[way]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x) + self.way(x))
        return x.square().mean()


def trained(way: str, preset: str) -> float:
    """The largest difference to one process."""
    torch.manual_seed(0)
    batches = [{"x": torch.randn(4, 4, 4, dtype=torch.float64)} for _ in range(2)]
    return against_one(Listed(way), batches, preset=preset)
