"""Models that move the batch away from dim 0 and back again, as libraries do (`tests.models.Case`)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests import models
from tests.models import BATCH, HEADS, HIDDEN, SEQUENCE

SIDE, WINDOW = 8, 4


class TorchAttention(nn.Module):
    """PyTorch's own, which permutes its fused projections; `batch_first` or between transpositions."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.attention = nn.MultiheadAttention(HIDDEN, HEADS, batch_first=batch_first)
        self.head = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.batch_first:
            x = x.transpose(0, 1)
        made: torch.Tensor = self.head(self.attention(x, x, x, need_weights=False)[0])
        return made if self.batch_first else made.transpose(0, 1)


class FusedAttention(nn.Module):
    """As timm writes it: one projection, whose three parts go first, and a token that is the same for
    all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, HIDDEN))
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.proj = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        made = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c)
        out: torch.Tensor = self.proj(made)[:, 1:]
        return out


class Windows(nn.Module):
    """As Swin: attention within windows of a picture, which become the outer dim with the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.bias = nn.Parameter(torch.randn(HEADS, WINDOW**2, WINDOW**2))
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, h, w, c = x.shape
        shifted = torch.roll(self.norm(x), (-2, -2), (1, 2))
        parts = shifted.view(b, h // WINDOW, WINDOW, w // WINDOW, WINDOW, c).transpose(2, 3)
        windows = parts.reshape(-1, WINDOW**2, c)
        qkv = self.qkv(windows).view(-1, WINDOW**2, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        scores = (q @ k.transpose(-2, -1) + self.bias).softmax(-1)
        made = (scores @ v).transpose(1, 2).reshape(-1, WINDOW, WINDOW, c)
        back = made.view(b, h // WINDOW, w // WINDOW, WINDOW, WINDOW, c).transpose(2, 3)
        return x + torch.roll(back.reshape(b, h, w, c), (2, 2), (1, 2))


def _case(make: type[nn.Module], shape: tuple[int, ...], *args: bool) -> models.Case:
    torch.manual_seed(0)
    return make(*args), {"x": torch.randn(shape)}, lambda output: output.square().mean()


TOKENS = (BATCH, SEQUENCE, HIDDEN)
MOVED = {
    "moved_batch_first": lambda: _case(TorchAttention, TOKENS, True),
    "moved_batch_second": lambda: _case(TorchAttention, TOKENS, False),
    "moved_fused": lambda: _case(FusedAttention, TOKENS),
    "moved_windows": lambda: _case(Windows, (BATCH, SIDE, SIDE, HIDDEN)),
}
