"""What ranks do in the tests of batches, names and divided plans."""

from __future__ import annotations

import copy
import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import autopar
from autopar.errors import RankMismatchError


@dataclass
class Pair:
    """A container with a number in it."""

    x: torch.Tensor
    power: int = 2


class Nested(nn.Module):
    """Takes its input out of whatever it is wrapped in."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 4))

    def forward(self, batch: Any, scale: Any = 1.0) -> torch.Tensor:
        while not isinstance(batch, torch.Tensor):
            if hasattr(batch, "values"):
                batch = next(iter(batch.values()))
            else:
                batch = batch.x if hasattr(batch, "x") else batch[0]
        return (self.layers(batch) * scale).square().mean()


class Named(nn.Module):
    """A child and a buffer of any name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        for each in ("a", "b", "c"):
            child = nn.Module()
            child.add_module(name, nn.Linear(4, 4))
            child.register_buffer(f"{name} seen", torch.zeros(()))
            self.add_module(each, child)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for each in (self.a, self.b, self.c):
            x = torch.tanh(each._modules[self.name](x))
            each._buffers[f"{self.name} seen"].add_(1)
        return x.square().mean()


def against_one(model: nn.Module, batches: list[dict[str, Any]], **asked: Any) -> float:
    """The largest difference of losses and weights after steps on these batches."""
    model = model.double()
    alone = copy.deepcopy(model)
    size = torch.distributed.get_world_size()
    parallel = autopar.parallelize(model, (size,), batches[0], **asked)
    worst = 0.0
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (parallel, alone)]
    for batch in batches:
        if "pipeline" in asked:
            loss = parallel.train_step(**batch)
        else:
            loss = parallel(**batch)
            loss.backward()
        expected = alone(**batch)
        expected.backward()
        worst = max(worst, abs(loss.item() - expected.item()))
        for each in optimizers:
            each.step()
            each.zero_grad()
    mine = parallel.full_state_dict()
    for name, value in alone.state_dict().items():
        worst = max(worst, (mine[name] - value).abs().max().item())
    return worst


def wrapped(kind: str, seed: int) -> Any:
    """A tensor in a container of some kind."""
    torch.manual_seed(seed)
    x = torch.randn(4, 4, dtype=torch.float64)
    forms: dict[str, Any] = {
        "dict": {"input.x": x}, "deep": {"class": [(x, 1)]}, "dataclass": Pair(x),
        "empty key": {"": x}, "int key": {3: {"a b": x}},
    }  # fmt: skip
    return forms[kind]


def nested(kind: str, **asked: Any) -> float:
    """Steps on nested batches of other values."""
    torch.manual_seed(0)
    batches = [{"batch": wrapped(kind, seed)} for seed in range(3)]
    return against_one(Nested(), batches, **asked)


def named(name: str, preset: str) -> float:
    """Steps of a model with such names."""
    torch.manual_seed(0)
    batches = [{"x": torch.randn(4, 4, dtype=torch.float64)} for _ in range(2)]
    return against_one(Named(name), batches, preset=preset)


def differs(step: int, local: bool, values: bool) -> tuple[str, float]:
    """What is said where rank 1's batch of a step is of another shape or has other values."""
    rank = torch.distributed.get_rank()
    example = {"batch": torch.ones(4, 4)}
    asked = {"batches": autopar.Batches(local=True)} if local else {}
    parallel = autopar.parallelize(Nested(), (2,), example, preset="ddp", **asked)
    rows = 2 if local else 4
    for number in range(4):
        odd = rank == 1 and number == step
        batch = torch.ones(rows - (odd and not values), 4) * (2 if odd and values else 1)
        began = time.monotonic()
        try:
            parallel(batch=batch).backward()
        except RankMismatchError as error:
            return str(error), time.monotonic() - began
    return "", 0.0


def numbers(as_tensor: bool) -> tuple[int, int, float]:
    """Programs after many values of a number, warnings, and the difference from one process."""
    torch.manual_seed(0)
    model = Nested().double()
    alone = copy.deepcopy(model)
    x = torch.randn(4, 4, dtype=torch.float64)

    def value(step: int) -> Any:
        number = 0.5 + step / 8
        return torch.tensor(number, dtype=torch.float64) if as_tensor else number

    parallel = autopar.parallelize(model, (2,), {"batch": x, "scale": value(0)}, preset="ddp")
    worst = 0.0
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for step in range(7):
            loss = parallel(batch=x, scale=value(step))
            worst = max(worst, abs(loss.item() - alone(x, value(step)).item()))
    said = [w for w in heard if "'scale'" in str(w.message)]
    return len(parallel._programs._of_batch), len(said), worst


def nested_in_stages() -> float:
    """`nested` as a pipeline."""
    return nested("deep", pipeline=autopar.Pipeline(2, microbatches=2))
