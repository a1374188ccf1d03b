"""Attention as people write it: fused or by hand, masks, causal, grouped queries, rotary."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.fuzz.draw import Draw, Shape


class Attention(nn.Module):
    """Self-attention over (batch, sequence, features) with a residual sum."""

    def __init__(self, draw: Draw, width: int) -> None:
        super().__init__()
        self.heads = draw.one([h for h in (1, 2, 4) if width % (2 * h) == 0])
        self.groups = draw.divisor(self.heads, (1, 2, 4))
        self.size = width // self.heads
        self.masked = draw.one(("none", "causal", "bool", "bias", "both", "own"))
        self.way = draw.one(("sdpa", "gqa", "hand", "einsum", "torch"))
        self.fused = draw.flag() and self.groups == self.heads
        self.rotary = draw.flag(0.3)
        inner = self.heads * self.size
        if self.way == "torch":
            self.attention = nn.MultiheadAttention(width, self.heads, batch_first=True)
        elif self.fused:
            self.qkv = nn.Linear(width, 3 * inner)
        else:
            self.q = nn.Linear(width, inner, bias=draw.flag())
            self.k = nn.Linear(width, self.groups * self.size)
            self.v = nn.Linear(width, self.groups * self.size)
        self.out = nn.Linear(inner, width)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        mask = self._mask(x, lengths)
        if self.way == "torch":
            blocked = None if mask is None else ~mask.bool()
            if blocked is not None and blocked.dim() == 4:
                blocked = blocked.expand(-1, self.heads, x.shape[1], -1).flatten(0, 1)
            made, _ = self.attention(x, x, x, attn_mask=blocked, need_weights=False)
            return x + self.out(made)
        q, k, v = self._project(x)
        made = self._mix(q, k, v, mask)
        return x + self.out(made.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1))

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        shape = (*x.shape[:2], -1, self.size)
        parts = self.qkv(x).chunk(3, -1) if self.fused else (self.q(x), self.k(x), self.v(x))
        q, k, v = (part.view(shape).transpose(1, 2) for part in parts)
        if self.rotary:
            place = torch.arange(x.shape[1], device=x.device).to(x.dtype)[:, None]
            rate = 10.0 ** -torch.arange(self.size, device=x.device).to(x.dtype)
            turn = place * rate / self.size
            q, k = (y * turn.cos() + self._turned(y) * turn.sin() for y in (q, k))
        return q, k, v

    def _turned(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat([-second, first], -1)

    def _mix(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        if self.way == "gqa":
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=self._additive(mask, q), enable_gqa=self.groups != self.heads
            )
        if self.groups != self.heads:
            k, v = (y.repeat_interleave(self.heads // self.groups, dim=1) for y in (k, v))
        if self.way == "sdpa":
            if self.masked == "causal":
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        if self.way == "einsum":
            scores = torch.einsum("bhsd,bhtd->bhst", q, k) / self.size**0.5
        else:
            scores = (q @ k.transpose(-1, -2)) * self.size**-0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return scores.softmax(-1) @ v

    def _mask(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor | None:
        """True where a query may look; no row is empty."""
        size = x.shape[1]
        causal = torch.ones(size, size, dtype=torch.bool, device=x.device).tril()
        real = (torch.arange(size, device=x.device) < lengths[:, None])[:, None, None, :]
        if self.masked in ("causal", "own"):
            return causal
        if self.masked == "both":
            return causal & real
        return real if self.masked in ("bool", "bias") else None

    def _additive(self, mask: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
        if mask is None or self.masked != "bias":
            return mask
        return torch.zeros_like(mask, dtype=like.dtype).masked_fill(~mask, -1e4)

    def extra_repr(self) -> str:
        return f"{self.way}, {self.masked}, {self.heads}/{self.groups}, rotary={self.rotary}"


def attention(draw: Draw, shape: Shape) -> nn.Module:
    """Any of them."""
    return Attention(draw, shape[-1])
