"""Models that select by masks of constants and buffers, as `tests.models` has them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from tests import models

Body = Callable[["Selecting", torch.Tensor], torch.Tensor]


class Selecting(nn.Module):
    """Three equal layers, and a loss on what is selected of them."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.body = body
        self.register_buffer("mask", torch.arange(16) % 3 != 1)
        self.register_buffer("counts", torch.arange(16) % 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x).tanh()
        return self.body(self, x)


def columns(m: Selecting, h: torch.Tensor) -> torch.Tensor:
    """By a buffer."""
    return h[:, m.mask].square().mean()


def contrast(m: Selecting, h: torch.Tensor) -> torch.Tensor:
    """Every other sample, by a mask of the batch's size."""
    pairs = F.normalize(h, dim=1)
    likeness = pairs @ pairs.T
    others = likeness[~torch.eye(len(h), dtype=torch.bool)].view(len(h), -1)
    return (others.logsumexp(1) - likeness.diagonal()).mean()


def repeated(m: Selecting, h: torch.Tensor) -> torch.Tensor:
    """Each column as often as a buffer says."""
    return (h.repeat_interleave(m.counts, 1) * torch.arange(24)).square().mean()


def spoken(m: Selecting, h: torch.Tensor) -> torch.Tensor:
    """A loss over alignments."""
    scores = h[None] * torch.linspace(0.5, 2, 6, dtype=h.dtype)[:, None, None]
    labels = 1 + (torch.arange(len(h))[:, None] + 2 * torch.arange(3)) % 15
    count = 1 + torch.arange(len(h)) % 3
    return F.ctc_loss(scores.log_softmax(-1), labels, torch.full((len(h),), 6), count)


BODIES: tuple[Body, ...] = (columns, contrast, repeated, spoken)


def _case(body: Body) -> Callable[[], models.Case]:
    def made() -> models.Case:
        torch.manual_seed(6)
        return Selecting(body), {"x": torch.randn(models.BATCH, 16)}, None

    return made


SELECTIONS = {f"selections.{body.__name__}": _case(body) for body in BODIES}
