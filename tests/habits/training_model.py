"""What training programs train, and how: models, batches, layouts, optimizers, as settings by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from autopar.request.pipeline import Pipeline

SAMPLES, FEATURES, WIDTH, LAYERS = 8, 6, 8, 3
PARTS = ("first", "norm", "layers.0", "layers.2", "head")
"""Submodules that are frozen or change their mode."""
MODELS = ("batch_norm", "layer_norm", "frozen", "nested")
"""`frozen` has parameters that were frozen before `parallelize`, `nested` a batch with a dict in it."""
FROZEN = ("first", "layers.0")


@dataclass(frozen=True)
class Layout:
    """So many ranks, and what `parallelize` is told."""

    ranks: int
    options: Mapping[str, Any]
    mesh: tuple[int, ...] | None = None

    @property
    def is_staged(self) -> bool:
        """Whether it is a pipeline."""
        return "pipeline" in self.options


def _staged(
    ranks: int, schedule: str | None = None, microbatches: int = 2, **options: Any
) -> Layout:
    return Layout(ranks, {"pipeline": Pipeline(2, schedule, microbatches), **options})


LAYOUTS: dict[str, Layout] = {
    "one": Layout(1, {}),
    "free": Layout(2, {}),
    "ddp": Layout(2, {"preset": "ddp"}),
    "zero2": Layout(2, {"preset": "zero2"}),
    "fsdp": Layout(2, {"preset": "fsdp"}),
    "megatron": Layout(2, {"preset": "megatron"}),
    "recompute": Layout(2, {"preset": "fsdp", "recompute": "full"}),
    "pinned": Layout(2, {"constraints": {"stored:layers.*.up.weight": "[S(1)]"}}),
    "1f1b": _staged(2, schedule="1f1b"),
    "gpipe": _staged(2, schedule="gpipe", microbatches=4),
    "ddp4": Layout(4, {"preset": "ddp"}),
    "fsdp4": Layout(4, {"preset": "fsdp"}),
    "hsdp": Layout(4, {"preset": "hsdp"}, mesh=(2, 2)),
    "fsdp_megatron": Layout(4, {"preset": "fsdp_megatron"}, mesh=(2, 2)),
    "fsdp_1f1b": _staged(4, preset="fsdp"),
}


@dataclass(frozen=True)
class Setting:
    """Where a program begins."""

    layout: str = "fsdp"
    model: str = "layer_norm"
    optimizer: str = "adamw"
    fresh: bool = True
    """Whether the parallel module is new, or one that earlier programs trained and reset."""

    def can_have(self, layout: str) -> bool:
        """Whether this model trains in that layout: microbatches and batch norm do not go together."""
        return not (LAYOUTS[layout].is_staged and self.model == "batch_norm")


class Layer(nn.Module):
    """A residual block; it stands three times.  Its attributes are set while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(
            2 * WIDTH, WIDTH, bias=False
        )  # each tensor of a checkpoint costs a ms
        self.dropout, self.gain = nn.Dropout(0.0), 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(self.norm(x))
        return x + self.gain * self.dropout(self.down(h.tanh() * h.sigmoid()).tanh())


class Net(nn.Module):
    """Equal layers, and a parameter whose gradient is no number where `w` is zero."""

    def __init__(self, norm: nn.Module, scale: torch.Tensor) -> None:
        super().__init__()
        self.scale = nn.Parameter(scale)
        # Batch norm takes a bias away: its gradient would be rounding noise, which Adam makes large.
        self.first, self.norm = nn.Linear(FEATURES, WIDTH, bias=False), norm
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Any, w: torch.Tensor | None = None) -> torch.Tensor:
        if w is None:
            x, w = x["x"], x["more"][0]
        h = self.norm(self.first(x * (self.scale * w).sqrt()))
        for layer in self.layers:
            h = layer(h)
        return self.head(h).square().mean()


@cache
def fresh(kind: str) -> nn.Module:
    """The model that every program of this kind begins with."""
    torch.manual_seed(3)
    if kind == "batch_norm":  # and a parameter of no dims, by which optimizers step on DTensors
        model = Net(nn.BatchNorm1d(WIDTH), torch.tensor(1.5)).double()
    else:
        model = Net(nn.LayerNorm(WIDTH), torch.tensor([1.5])).double()
    for part in FROZEN if kind == "frozen" else ():
        model.get_submodule(part).requires_grad_(False)
    return model


def batch(kind: str, seed: int, samples: int = SAMPLES) -> dict[str, Any]:
    """A global batch."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, FEATURES, generator=generator, dtype=torch.float64)
    w = torch.rand(samples, 1, generator=generator, dtype=torch.float64) + 0.5
    return {"x": {"x": x, "more": (w,)}} if kind == "nested" else {"x": x, "w": w}


def _groups(module: nn.Module, **other: Any) -> list[dict[str, Any]]:
    """Matrices, and what is no matrix with options of its own."""
    named = dict(module.named_parameters()).values()
    return [
        {"params": [p for p in named if p.dim() > 1]},
        {"params": [p for p in named if p.dim() <= 1], **other},
    ]


def optimizer(kind: str, module: nn.Module) -> torch.optim.Optimizer:
    """Of all parameters, in two groups but for Adam's."""
    if kind == "adamw":
        return torch.optim.AdamW(_groups(module, weight_decay=0.0), lr=1e-2, weight_decay=0.1)
    if kind == "sgd":
        return torch.optim.SGD(_groups(module, lr=1e-2), lr=3e-2, momentum=0.9, nesterov=True)
    return torch.optim.Adam(module.parameters(), lr=1e-2, amsgrad=True)


OPTIMIZERS = ("adamw", "sgd", "adam")
