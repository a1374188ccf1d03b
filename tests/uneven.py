"""Models whose sizes no mesh divides."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests import models
from tests.adapted import with_adapters


def _cut(case: models.Case, batch: int) -> models.Case:
    model, inputs, loss = case
    return model, {key: value[:batch] for key, value in inputs.items()}, loss


def gpt2(**config: Any) -> models.Case:
    """Five heads in a fused projection, 257 tied classes, six samples."""
    return _cut(models.gpt2(n_head=5, n_embd=40, vocab_size=257, **config), 6)


def llama() -> models.Case:
    """Three key-value heads for six, 131 classes of their own table, six samples."""
    settings = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 48}
    return _cut(models.llama(**settings, vocab_size=131, tie_word_embeddings=False), 6)


def five() -> models.Case:
    """Five classes on four ranks: the last shard is empty."""
    model, inputs, loss = models.gpt2(layers=1, vocab_size=5)
    return model, {key: value.where(value < 0, value % 5) for key, value in inputs.items()}, loss


def adapters() -> models.Case:
    """Five heads and 257 classes that do not train, with adapters that do."""
    return with_adapters(gpt2(layers=1))


def half_frozen() -> models.Case:
    """The padded table and the heads of the first block do not train, those of the second do."""
    model, inputs, loss = gpt2()
    model.transformer.wte.requires_grad_(False)
    model.transformer.h[0].attn.requires_grad_(False)
    return model, inputs, loss


class Regression(nn.Module):
    """Seven features of six samples, hidden 27; the loss is a mean over samples and features."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 27)
        self.down = nn.Linear(27, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.down(F.silu(self.up(x)))
        return made


def regression(seed: int = 0) -> models.Case:
    """Squared errors, and a penalty on the squares of the outputs' sum."""

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(output, target) + output.sum(0).square().mean()

    generator = torch.Generator().manual_seed(seed)
    x, target = (torch.randn(6, size, generator=generator) for size in (8, 7))
    torch.manual_seed(seed)
    return Regression(), {"x": x, "target": target}, loss


UNEVEN = {
    "uneven_gpt2": gpt2,
    "uneven_llama": llama,
    "uneven_five": five,
    "uneven_regression": regression,
    "uneven_adapters": adapters,
    "uneven_half_frozen": half_frozen,
}
