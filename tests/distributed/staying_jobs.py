"""What every rank does with gradients that stay where they are while more are added."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

import autopar
from tests.parity import close

Step = Callable[[nn.Module, torch.optim.Optimizer, torch.Tensor], None]
ROWS = 8


class Paths(nn.Module):
    """Two ways through; a batch takes one of them or both, and one weight is read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 16), nn.Linear(8, 16)
        self.down = nn.Linear(16, 4)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        inside = torch.relu(self.left(input)) + torch.tanh(self.right(input))
        return (self.down(inside) + self.down(inside * inside)).square().mean()


def zeroed(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    """Gradients stay, and become zero."""
    for part in (x, 2 * x):
        model(input=part).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    model(input=3 * x).backward()


def dropped_late(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    """Between forward and backward."""
    model(input=x).backward()
    loss = model(input=2 * x)
    optimizer.zero_grad()
    loss.backward()


def added(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    """Backwards that each synchronise, scaled in between."""
    for part in (x, 2 * x, 3 * x):
        model(input=part).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(0.5)


def some_dropped(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    """Of some parameters, and others are given in a tensor of the user's."""
    model(input=x).backward()
    for place, parameter in enumerate(model.parameters()):
        assert parameter.grad is not None
        parameter.grad = (None, parameter.grad, 2 * parameter.grad)[place % 3]
    model(input=2 * x).backward()


def withheld(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    """Sums that wait for the next synchronisation, on top of one that stayed."""
    model(input=x).backward()
    if isinstance(model, autopar.Parallel):
        with model.no_sync():
            model(input=2 * x).backward()
    else:
        model(input=2 * x).backward()
    model(input=3 * x).backward()
    model(input=x).backward()


STEPS: dict[str, Step] = {
    step.__name__: step for step in (zeroed, dropped_late, added, some_dropped, withheld)
}


def equal(preset: str, shape: tuple[int, ...]) -> None:
    """After all of them, one after the other, gradients are those of one process."""
    for name, step in STEPS.items():
        torch.manual_seed(0)
        model, x = Paths().double(), torch.randn(ROWS, 8, dtype=torch.float64)
        alone = copy.deepcopy(model)
        parallel = autopar.parallelize(model, shape, {"input": x}, preset=preset)
        for each in (alone, parallel):
            step(each, torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9), x)
        for mine, wanted in zip(parallel.parameters(), alone.parameters(), strict=True):
            close(mine.grad.full_tensor(), wanted.grad, f"{name} under {preset}")


def in_place(preset: str) -> None:
    """A second backward adds without new memory for what is there."""
    torch.manual_seed(0)
    model, x = Paths().double(), torch.randn(ROWS, 8, dtype=torch.float64)
    parallel = autopar.parallelize(model, 2, {"input": x}, preset=preset)

    def places() -> list[int]:
        parallel(input=x).backward()
        return [p.grad.to_local().data_ptr() for p in parallel.parameters()]

    assert places() == places(), "gradients moved"
