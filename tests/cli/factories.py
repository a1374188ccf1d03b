"""Factories that the command line is pointed at: good ones and bad ones."""

from __future__ import annotations

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


def bare() -> nn.Module:
    """A model that brings no example inputs."""
    return MLP()


def raises() -> nn.Module:
    raise RuntimeError("no such file: [weights].bin")


def nothing() -> None:
    return None


def four() -> tuple[Any, ...]:
    return MLP(), {}, None, None


def odd_inputs() -> tuple[Any, ...]:
    return MLP(), "x"


def odd_loss() -> tuple[Any, ...]:
    return MLP(), {"x": torch.zeros(8, 32)}, "mse"
