"""Factories that the command line is pointed at: good ones and bad ones."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from tests.models import MLP, gpt2, mlp

SCALE = 3
good = mlp
gpt = gpt2


def small() -> tuple[Any, ...]:
    """The MLP on half the batch: other sizes, the same operators."""
    model, inputs, loss = mlp()
    return model, {key: value[:4] for key, value in inputs.items()}, loss


def untrained() -> tuple[Any, ...]:
    """No parameter has a gradient."""
    model, inputs, loss = mlp()
    return model.requires_grad_(False), inputs, loss


def gpt_of_six() -> tuple[Any, ...]:
    """A batch that does not go into four."""
    return _gpt(6)


def gpt_of_four() -> tuple[Any, ...]:
    """A smaller batch."""
    return _gpt(4)


def _gpt(batch: int) -> tuple[Any, ...]:
    model, inputs, *loss = gpt2()
    return model, {key: value[:batch] for key, value in inputs.items()}, *loss


def chatty() -> tuple[Any, ...]:
    """It talks."""
    print("building the model")
    return small()


def bare() -> nn.Module:
    """A model that brings no example inputs."""
    return MLP()


def raises() -> nn.Module:
    raise RuntimeError("no such file: [weights].bin")


def nothing() -> None:
    return None


def four() -> tuple[Any, ...]:
    return MLP(), {}, None, None


def too_narrow() -> tuple[Any, ...]:
    """Inputs that the first product cannot take."""
    model, inputs, loss = mlp()
    return model, inputs | {"x": torch.zeros(8, 5)}, loss


def odd_inputs() -> tuple[Any, ...]:
    return MLP(), "x"


def odd_loss() -> tuple[Any, ...]:
    return MLP(), {"x": torch.zeros(8, 32)}, "mse"


def exits() -> nn.Module:
    sys.exit(3)


def of_the_meta_device() -> tuple[Any, ...]:
    """A constant that is neither parameter nor buffer, and has no values."""
    with torch.device("meta"):
        model = MLP()
        model.scale = torch.ones(32)
    forward = model.up.forward
    model.up.forward = lambda x: forward(x * model.scale)  # type: ignore[method-assign]
    return model, *mlp()[1:]


def value_of_the_meta_device() -> nn.Module:
    with torch.device("meta"):
        return nn.Linear(int(torch.ones(3).sum().item()), 2)
