"""Random models from a grammar of layers: a seed gives a model, a batch and a loss.

A model is an entrance, some layers of the present kind of tensor (vectors, sequences, images), now and
then a change of kind, and a loss.  Every layer is made for the shape that it meets.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from tests import models
from tests.fuzz import common, images, losses, odds, sequences, vectors
from tests.fuzz.attention import Attention
from tests.fuzz.draw import Do, Draw, Shape

BATCH, VOCAB = 8, 40
LENGTHS = (8, 12, 16)
LAYERS = {
    2: (*common.LAYERS, *vectors.LAYERS, *odds.LAYERS),
    3: (*common.LAYERS, *sequences.LAYERS, *sequences.LAYERS, *odds.LAYERS, *odds.LAYERS),
    4: (*images.LAYERS, odds.plain),
}
ENDS = {2: vectors.ENDS, 3: sequences.ENDS, 4: images.ENDS}
LARGEST = 6000
"""Entries of a tensor; beyond, nothing may grow."""
TRIES = 20
LEAST = 1e-4
"""The largest entry of a gradient, at least: smaller ones are rounding errors of larger numbers."""


class Residual(nn.Module):
    """A layer beside its input."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = x + self.inner(x)
        return made


class Twice(nn.Module):
    """One layer, used two times."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.inner(self.inner(x))
        return made


class Branches(nn.Module):
    """Two layers side by side, put together along a dim."""

    def __init__(self, first: nn.Module, second: nn.Module, dim: int) -> None:
        super().__init__()
        self.first, self.second, self.dim = first, second, dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.first(x), self.second(x)], self.dim)


class Generated(nn.Module):
    """A model of the grammar; returns its loss."""

    def __init__(self, draw: Draw) -> None:
        super().__init__()
        self.entrance, shape = entrance(draw)
        self.entered = shape
        self.embedded = isinstance(self.entrance, nn.Embedding)
        layers: list[nn.Module] = []
        for _ in range(draw.randint(2, 6)):
            layer, shape = grown(draw, shape)
            layers.append(layer)
        self.tied = self.embedded and len(shape) == 3 and draw.flag(0.4)
        if self.tied:
            layers.append(nn.Linear(shape[-1], self.entrance.embedding_dim))
            layers.append(nn.Linear(self.entrance.embedding_dim, VOCAB, bias=False))
            layers[-1].weight = self.entrance.weight
            shape = (*shape[:-1], VOCAB)
        self.layers = nn.ModuleList(layers)
        kind = draw.one(losses.LOSSES[len(shape)])
        self.loss, self.targets = kind(draw, shape)
        self.penalised = draw.flag(0.15)
        self.kind = kind.__name__
        freeze(draw, self)
        trains = any(parameter.requires_grad for parameter in self.parameters())
        self.gain = None if trains else nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor, target: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        x = self.entrance(x)
        for layer in self.layers:
            x = layer(x, lengths) if isinstance(layer, Attention) else layer(x)
        loss = self.loss(x if self.gain is None else x * self.gain, target)
        if self.penalised:
            loss = loss + 0.01 * sum(p.square().sum() for p in self.layers.parameters())
        return loss

    def extra_repr(self) -> str:
        frozen = [name for name, p in self.named_parameters() if not p.requires_grad]
        return f"loss={self.kind}, penalised={self.penalised}, tied={self.tied}, frozen={frozen}"


def entrance(draw: Draw) -> tuple[nn.Module, Shape]:
    """What makes the first tensor, and its shape."""
    kind = draw.one(("tokens", "tokens", "sequence", "vector", "image", "image"))
    if kind == "tokens":
        width = draw.width()
        table = nn.Embedding(VOCAB, width, padding_idx=draw.one((None, 0)))
        return table, (BATCH, draw.one(LENGTHS), width)
    if kind == "sequence":
        return nn.Identity(), (BATCH, draw.one(LENGTHS), draw.width())
    if kind == "vector":
        return nn.Identity(), (BATCH, draw.width())
    # Not the input itself, which a layer that works in place would change.
    centre = Do("centre", lambda x: x - 0.1)
    return centre, (BATCH, draw.one((4, 8, 3)), draw.one((4, 8)), draw.one((4, 8)))


def grown(draw: Draw, shape: Shape) -> tuple[nn.Module, Shape]:
    """A layer for a tensor of this shape, and the shape that it makes."""
    for _ in range(TRIES):
        try:
            made = proposal(draw, shape)
        except ValueError:  # no such layer of this shape
            continue
        after = shape_after(made, shape)
        if after is not None:
            return made, after
    return nn.Identity(), shape


def proposal(draw: Draw, shape: Shape) -> nn.Module:
    """Some layer; it may not fit."""
    if draw.flag(0.12):
        return draw.one(ENDS[len(shape)])(draw, shape)
    layer = draw.one(LAYERS[len(shape)])(draw, shape)
    if isinstance(layer, Attention):
        return layer
    if draw.flag(0.25) and shape_after(layer, shape) == shape:
        return Residual(layer) if draw.flag(0.7) else Twice(layer)
    if draw.flag(0.12):
        return Branches(layer, draw.one(LAYERS[len(shape)])(draw, shape), draw.one((1, -1)))
    return layer


@torch.no_grad()
def shape_after(layer: nn.Module, shape: Shape) -> Shape | None:
    """What a layer makes; None where it does not fit or grows beyond bounds."""
    probe = torch.randn(shape)
    lengths = torch.full((shape[0],), 2)
    try:
        made = layer(probe, lengths) if isinstance(layer, Attention) else layer(probe)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return None
    fits = made.dim() in LAYERS and made.numel() <= LARGEST and made.shape[0] == shape[0]
    fits = fits and min(made.shape) > 1 and bool(made.isfinite().all())
    return tuple(made.shape) if fits else None


def freeze(draw: Draw, model: nn.Module) -> None:
    """Some parameters that do not train."""
    every = list(model.parameters())
    if every and draw.flag(0.25):
        for parameter in every[: draw.randrange(len(every) + 1)]:
            parameter.requires_grad_(False)


def model(seed: int) -> models.Case:
    """The model of a seed and its batch; it returns its own loss."""
    for attempt in range(TRIES):
        draw = Draw(f"{seed}.{attempt}")
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            made = Generated(draw).train()
        given = batch(made, torch.Generator().manual_seed(seed))
        if trains(made, given):
            return made, given, None
    raise AssertionError(f"seed {seed}: {TRIES} models in a row that do not train")


def trains(made: nn.Module, given: dict[str, Any]) -> bool:
    """Whether PyTorch alone takes a step of it in float64."""
    single, batch, _ = models.double((copy.deepcopy(made), given, None))
    try:
        loss = single(**batch)
        loss.backward()
    except (RuntimeError, ValueError):
        return False
    changes = [p.grad.abs().max() for p in single.parameters() if p.grad is not None]
    return bool(loss.isfinite()) and bool(torch.stack(changes).max() > LEAST)


def batch(made: Generated, generator: torch.Generator) -> dict[str, Any]:
    """Inputs that the entrance takes, and targets that the loss takes."""
    shape = made.entered
    if made.embedded:
        x = torch.randint(0, VOCAB, shape[:2], generator=generator)
    else:
        x = torch.randn(shape, generator=generator)
    lengths = torch.randint(1, shape[1] + 1, shape[:1], generator=generator)
    return {"x": x, "target": made.targets(generator), "lengths": lengths}
