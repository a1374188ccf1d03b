"""Models that read and change buffers in one forward, with three equal layers each."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn


def trunk(width: int = 8) -> nn.Sequential:
    """Three equal layers."""
    parts = [part for _ in range(3) for part in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*parts)


class Counter(nn.Module):
    """A counter that scales the loss, changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = trunk()
        self.register_buffer("step", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        return self.trunk(x).square().mean() * self.step


class Assigned(Counter):
    """The same, by assignment."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step = self.step + 1
        return self.trunk(x).square().mean() / (1 + self.step)


class Statistics(nn.Module):
    """Running statistics that are read before they move."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = trunk()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = (self.trunk(x) - self.mean.clone()) * self.scale.clone()
        with torch.no_grad():
            self.mean.lerp_(hidden.mean(0), 0.1)
            self.scale.mul_(0.9).add_(hidden.abs().mean(0), alpha=0.1)
        return hidden.square().mean()


class Between(nn.Module):
    """Statistics that are read, moved, and read again."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = trunk()
        self.register_buffer("centre", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.trunk(x)
        before = (hidden - self.centre).square().mean()
        self.centre.mul_(0.9).add_(hidden.detach().mean(0), alpha=0.1)
        return before + (hidden * self.centre).sum(-1).mean()


class Normalised(nn.Module):
    """Spectral norm: power iteration into buffers in every layer."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.spectral_norm
        self.layers = nn.ModuleList(norm(nn.Linear(8, 8)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x.square().mean()


class Batches(nn.Module):
    """Batch norm in every layer: statistics and `num_batches_tracked`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)) for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return (x * torch.arange(1.0, 9.0, dtype=x.dtype)).square().mean()


class Queue(nn.Module):
    """MoCo's queue at a fixed place: new keys in front, the oldest fall out."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = trunk()
        self.register_buffer("queue", F.normalize(torch.randn(8, 32), dim=0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = F.normalize(self.trunk(x), dim=1)
        with torch.no_grad():
            keys = F.normalize(self.trunk(x.flip(1)), dim=1)
        positive = (query * keys).sum(1, keepdim=True)
        logits = torch.cat([positive, query @ self.queue.clone().detach()], 1) / 0.2
        with torch.no_grad():
            self.queue = torch.cat([keys.T, self.queue[:, : -len(x)]], 1)
        return F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.int64))


class Pointer(Queue):
    """MoCo's queue with a pointer buffer, written where it points by an index of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = F.normalize(self.trunk(x), dim=1)
        with torch.no_grad():
            keys = F.normalize(self.trunk(x.flip(1)), dim=1)
        logits = torch.cat([(query * keys).sum(1, keepdim=True), query @ self.queue.clone()], 1)
        with torch.no_grad():
            places = (self.pointer + torch.arange(len(x))) % self.queue.shape[1]
            self.queue.index_copy_(1, places, keys.T)
            self.pointer.add_(len(x)).remainder_(self.queue.shape[1])
        return F.cross_entropy(logits / 0.2, torch.zeros(len(x), dtype=torch.int64))


class Codebook(nn.Module):
    """Vector quantisation whose codes follow the samples by moving averages."""

    def __init__(self, codes: int = 16) -> None:
        super().__init__()
        self.trunk = trunk()
        self.register_buffer("codes", torch.randn(codes, 8))
        self.register_buffer("sizes", torch.ones(codes))
        self.register_buffer("sums", self.codes.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.trunk(x)
        codes = self.codes.clone()
        nearest = torch.cdist(hidden.detach(), codes).argmin(1)
        quantised = F.embedding(nearest, codes)
        with torch.no_grad():
            chosen = F.one_hot(nearest, len(codes)).to(hidden.dtype)
            self.sizes.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
            self.sums.mul_(0.9).add_(chosen.T @ hidden, alpha=0.1)
            self.codes.copy_(self.sums / self.sizes.clamp(min=0.1).unsqueeze(1))
        straight = hidden + (quantised - hidden).detach()
        return (straight - x).square().mean() + (hidden - quantised).square().mean()


class Shadow(nn.Module):
    """A moving average of a weight, kept in a buffer, as a teacher."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.last = trunk(), nn.Linear(8, 8, bias=False)
        self.register_buffer("teacher", self.last.weight.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.trunk(x)
        with torch.no_grad():
            self.teacher.mul_(0.9).add_(self.last.weight * 0.1)
            wanted = hidden @ self.teacher.T
        return (self.last(hidden) - wanted).square().mean() + self.last(hidden).square().mean()


class Swapped(nn.Module):
    """Two buffers that change places."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = trunk()
        self.register_buffer("first", torch.arange(8.0))
        self.register_buffer("second", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.first, self.second = self.second, self.first + 1
        return (self.trunk(x) * self.first).square().mean()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "counter": Counter, "assigned": Assigned, "statistics": Statistics, "between": Between,
    "spectral": Normalised, "batch_norm": Batches, "swapped": Swapped,
    "queue": Queue, "pointer": Pointer, "codebook": Codebook, "shadow": Shadow,
}  # fmt: skip
