"""Models with a frozen trunk, as `tests.models` has them: the work before the first trained weight."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests import models
from tests.architectures import ARCHITECTURES


class Probe(nn.Module):
    """A frozen Transformer encoder, and a classifier on the mean of what it says."""

    def __init__(self, vocab: int = 64, width: int = 32, heads: int = 4, classes: int = 12) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab, width)
        layer = nn.TransformerEncoderLayer(width, heads, 48, 0.0, batch_first=True)
        self.trunk = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)
        for module in (self.words, self.trunk):
            module.requires_grad_(False)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.trunk(self.words(ids)).mean(1)), labels)


class Pictures(nn.Module):
    """Frozen convolutions, whose batch norm in train mode still moves its running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        )  # fmt: skip
        self.trunk.requires_grad_(False)
        self.head = nn.Linear(16, 12)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.trunk(x).mean((2, 3))), labels)


class Teacher(nn.Module):
    """Distilled from a model trained elsewhere: no gradient, though its weights could have one."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 12))
        self.student = nn.Sequential(nn.Linear(32, 24), nn.GELU(), nn.Linear(24, 12))
        self.table = nn.Parameter(torch.randn(12), requires_grad=False)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = (self.teacher(x) + self.table).softmax(-1)
            alone = F.cross_entropy(self.teacher(x), labels)
        return F.cross_entropy(self.student(x), wanted) * (1 + alone)


def probe() -> models.Case:
    """A head on a frozen encoder."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 64, (8, 16), generator=generator)
    labels = torch.randint(0, 12, (8,), generator=generator)
    return Probe().train(), {"ids": ids, "labels": labels}, None


def pictures() -> models.Case:
    """A head on frozen convolutions."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 3, 8, 8, generator=generator)
    labels = torch.randint(0, 12, (8,), generator=generator)
    return Pictures().train(), {"x": x, "labels": labels}, None


def teacher() -> models.Case:
    """A student and its teacher under `no_grad`."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 32, generator=generator)
    labels = torch.randint(0, 12, (8,), generator=generator)
    return Teacher().train(), {"x": x, "labels": labels}, None


def frozen_table() -> models.Case:
    """GPT-2 that trains everything but its tables of words, which is its head too, and positions."""
    model, batch, loss = models.gpt2()
    for module in (model.transformer.wte, model.transformer.wpe):
        module.requires_grad_(False)
    return model, batch, loss


def bert_head() -> models.Case:
    """BERT of which only the head trains."""
    model, batch, loss = ARCHITECTURES["bert"]()
    model.base_model.requires_grad_(False)
    return model, batch, loss


FROZEN = {
    "probe": probe,
    "pictures": pictures,
    "teacher": teacher,
    "frozen_table": frozen_table,
    "bert_head": bert_head,
}
