"""A mixture of experts with a fixed capacity, in plain PyTorch: nothing in here knows of devices.

    autopar plan examples/moe.py:make_model --mesh 2x4 --hardware h100

Each token goes to its two best experts; an expert takes at most `capacity` tokens of each sequence,
the others pass it by.  Sending and fetching are einsums over [batch, sequence, expert, place], so the
experts are a dim like any other and may be split (GShard, Lepikhin et al. 2020).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class Experts(nn.Module):
    """Two-layer networks, one per expert, and the gate that chooses among them."""

    def __init__(self, hidden: int, inner: int, experts: int, spare: float) -> None:
        super().__init__()
        self.experts, self.spare = experts, spare
        self.gate = nn.Linear(hidden, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, hidden, inner) / math.sqrt(hidden))
        self.down = nn.Parameter(torch.randn(experts, inner, hidden) / math.sqrt(inner))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the experts make of x [batch, sequence, hidden], and the loss that keeps them even."""
        combine, uneven = self.route(x)
        dispatch = (combine > 0).to(x.dtype)
        sent = torch.einsum("bsec,bsm->ebcm", dispatch, x)
        inside = F.relu(torch.einsum("ebcm,emh->ebch", sent, self.up))
        made = torch.einsum("ebch,ehm->ebcm", inside, self.down)
        return torch.einsum("bsec,ebcm->bsm", combine, made), uneven

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """How much of which place of which expert each token gets: [batch, sequence, expert, place]."""
        capacity = math.ceil(2 * self.spare * x.shape[1] / self.experts)
        gates = F.softmax(self.gate(x), dim=-1)
        best = F.one_hot(gates.argmax(-1), self.experts)
        second = F.one_hot(gates.masked_fill(best.bool(), 0.0).argmax(-1), self.experts)
        uneven = self.experts * (gates.mean(1) * best.to(x.dtype).mean(1)).sum(-1).mean()
        # First choices take their places before second ones do.
        place = best.cumsum(1) - best
        place_second = second.cumsum(1) - second + best.sum(1, keepdim=True)
        weight, weight_second = gates * best, gates * second
        total = (weight + weight_second).sum(-1, keepdim=True)
        combine = self._placed(weight / total, place, capacity)
        combine = combine + self._placed(weight_second / total, place_second, capacity)
        return combine, uneven

    @staticmethod
    def _placed(weight: torch.Tensor, place: torch.Tensor, capacity: int) -> torch.Tensor:
        """The weights at their places; none where the expert is full."""
        places = torch.arange(capacity, device=place.device)
        return weight.unsqueeze(-1) * (place.unsqueeze(-1) == places)


class Block(nn.Module):
    """Attention, then experts."""

    def __init__(
        self, hidden: int, heads: int, inner: int, experts: int, spare: float, dropout: float
    ) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.experts = Experts(hidden, inner, experts, spare)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = self.qkv(self.before(x)).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        read = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(read.transpose(1, 2).flatten(2)))
        made, uneven = self.experts(self.between(x))
        return x + self.dropout(made), uneven


class Decoder(nn.Module):
    """A language model whose feed-forward layers are experts; returns its own loss."""

    def __init__(
        self,
        vocab: int,
        hidden: int,
        heads: int,
        inner: int,
        layers: int,
        positions: int,
        experts: int,
        spare: float = 1.25,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, hidden)
        self.position = nn.Embedding(positions, hidden)
        self.blocks = nn.ModuleList(
            Block(hidden, heads, inner, experts, spare, dropout) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.token(input_ids) + self.position(places)
        uneven = x.new_zeros(())
        for block in self.blocks:
            x, more = block(x)
            uneven = uneven + more
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()) + 0.01 * uneven


def make_model() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A model of some 300 million parameters, and a batch for it."""
    model = Decoder(32000, 1024, 16, 4096, layers=4, positions=1024, experts=8)
    tokens = torch.zeros(32, 1024, dtype=torch.int64)
    return model, {"input_ids": tokens, "labels": tokens}
