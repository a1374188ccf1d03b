"""The models and batches of the habits' programs."""

from __future__ import annotations

import torch
from torch import nn

WIDTH, SAMPLES = 8, 8


class Block(nn.Module):
    """A residual block."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.norm = nn.LayerNorm(2 * WIDTH)
        self.drop = nn.Dropout(dropout)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.down(self.drop(torch.tanh(self.norm(self.up(x)))))
        return x + made


class Net(nn.Module):
    """Three equal blocks; it returns its loss."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.scale = 1.0
        self.layers = nn.ModuleList(Block(dropout) for _ in range(3))
        self.head = nn.Linear(WIDTH, 4)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """All but the head."""
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.scale * self.head(self.encode(x)), y)


class Unlossy(Net):
    """It returns what it predicts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        made: torch.Tensor = self.head(self.encode(x))
        return made


class Normed(Net):
    """With batch norms."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(3))

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(layer(x))
        return x


class Idle(Net):
    """With a layer that takes no part."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Linear(WIDTH, WIDTH)


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 16, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def batch(step: int = 0, samples: int = SAMPLES) -> dict[str, torch.Tensor]:
    """A global batch."""
    drawn = torch.Generator().manual_seed(100 + step)
    return {
        "x": torch.randn(samples, WIDTH, generator=drawn, dtype=torch.float64),
        "y": torch.randn(samples, 4, generator=drawn, dtype=torch.float64),
    }


def tokens(step: int = 0, samples: int = SAMPLES) -> dict[str, torch.Tensor]:
    """A global batch for `Tied`."""
    drawn = torch.Generator().manual_seed(100 + step)
    shape = (samples, 6)
    return {k: torch.randint(0, 16, shape, generator=drawn) for k in ("tokens", "labels")}
