"""Layers that few models have: what lies at the edges of rules."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.fuzz.draw import Do, Draw, Shape, With, weight

PLAIN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cumprod": lambda x: torch.cumprod(x.sigmoid() + 0.5, -1) * x,
    "logcumsumexp": lambda x: torch.logcumsumexp(x, -1),
    "var_mean": lambda x: sum(torch.var_mean(x, dim=-1, keepdim=True)) + x,
    "prod": lambda x: x + (0.1 * x + 1).prod(-1, keepdim=True),
    "median": lambda x: x - x.median(-1, keepdim=True).values,
    "aminmax": lambda x: x / (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True) + 1.0),
    "rot": lambda x: torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2) + x,
    "lerp": lambda x: torch.lerp(x, x.flip(-1), 0.3),
    "uneven chunks": lambda x: torch.cat([p * i for i, p in enumerate(x.chunk(3, -1), 1)], -1),
    "tensor_split": lambda x: torch.cat(x.tensor_split(3, dim=-1)[::-1], -1),
    "hstack": lambda x: torch.concat([x, x.new_zeros(*x.shape[:-1], 2)], -1),
    "narrow": lambda x: x.narrow(-1, 1, x.shape[-1] - 2),
    "swapaxes": lambda x: x.swapaxes(0, -1).softmax(0).swapaxes(0, -1) * x,
    "no_grad": lambda x: x * without_gradient(x),
    "in place": lambda x: (x * 1.5).add_(1.0).mul_(x).clamp_(max=3.0),
    "slice put": lambda x: put(x),
    "masked": lambda x: x.masked_fill(x.detach() > 1.0, 1.0),
    "one hot": lambda x: x + F.one_hot(x.argmax(-1), x.shape[-1]).to(x.dtype),
    "tril": lambda x: x + torch.tril(x),
    "full_like": lambda x: torch.maximum(x, torch.full_like(x, -0.5)),
    "outer mean": lambda x: x - x.mean(),
    "std of batch": lambda x: (x - x.mean(0)) / (x.std(0) + 0.5),
    "norm": lambda x: x / (x.norm(dim=-1, keepdim=True) + 1.0),
    "renorm": lambda x: x * torch.rsqrt((x * x).sum() / x.numel() + 1.0),
    "sum of all": lambda x: x + 0.01 * x.sum(),
    "max of batch": lambda x: x - x.max(0, keepdim=True).values,
    "float": lambda x: (x.to(torch.float64) * 2).type_as(x),
    "diff": lambda x: torch.diff(x, dim=-1),
    "movedim": lambda x: x.movedim(-1, 0).contiguous().cumsum(1).movedim(0, -1) * 0.2,
    "atan2": lambda x: torch.atan2(x, x.roll(1, -1).abs() + 0.5),
    "where batch": lambda x: torch.where(torch.arange(x.shape[0])[:, None].expand(
        x.shape[0], x.shape[-1]).reshape(x.shape[0], *(1,) * (x.dim() - 2), -1) > 3, x, 0.5 * x),
    "dropout": lambda x: F.dropout(x, 0.0, True) + F.alpha_dropout(x, 0.0, True),
    "hardtanh": lambda x: F.hardtanh(x, -0.7, 1.2) + F.softsign(x) + F.logsigmoid(x),
    "celu": lambda x: F.celu(x) * F.hardsigmoid(x) + F.threshold(x, 0.1, 0.0),
    "pow": lambda x: (x.abs() + 0.1).pow(1.5) + x**2 - 1 / (x.square() + 1),
}  # fmt: skip


@torch.no_grad()
def without_gradient(x: torch.Tensor) -> torch.Tensor:
    """A gate that is not trained through."""
    return (x.mean(-1, keepdim=True) > 0).to(x.dtype) + 0.5


def put(x: torch.Tensor) -> torch.Tensor:
    """Part of a copy written over."""
    made = x.clone()
    made[..., :2] = 0.5 * made[..., 2:4]
    made[0] = made[0] * 2
    return made


def plain(draw: Draw, shape: Shape) -> nn.Module:
    """A function."""
    name = draw.one(list(PLAIN))
    return Do(name, PLAIN[name])


class Again(nn.Module):
    """A checkpointed layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = checkpoint(self.inner, x, use_reentrant=False)
        return x + made


class Average(nn.Module):
    """A running mean in a buffer, subtracted."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        self.mean.mul_(0.9).add_(x.detach().flatten(0, -2).mean(0), alpha=0.1)
        return x - self.mean


class Routed(nn.Module):
    """The best of some experts for every row, by a mask; the router trains through its probability."""

    def __init__(self, width: int, count: int, chosen: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.chosen = chosen

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chances = self.router(x).softmax(-1)
        best, places = chances.topk(self.chosen, -1)
        best = best / best.sum(-1, keepdim=True)
        gates = torch.zeros_like(chances).scatter(-1, places, best)
        made = [expert(x) * gates[..., i, None] for i, expert in enumerate(self.experts)]
        return x + torch.stack(made).sum(0)


def modules(draw: Draw, shape: Shape) -> nn.Module:
    """Layers with state of their own."""
    width = shape[-1]
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(width, 12))
    shared = nn.Linear(width, width)
    ways: dict[str, nn.Module] = {
        "checkpoint": Again(width),
        "average": Average(width),
        "routed": Routed(width, draw.one((2, 4)), draw.one((1, 2))),
        "weight norm": normed,
        "transposed tie": With(
            "tied both ways", lambda x, w: torch.tanh(x @ w) @ w.t(), w=weight(width, 24)
        ),
        "shared": With("shared", lambda x, m: m(x) + m(x.flip(-1)).sigmoid(), m=shared),
        "multi einsum": With(
            "three operands", lambda x, a, b: torch.einsum("...i,io,i->...o", x, a, b),
            a=weight(width, 16), b=weight(width),
        ),
        "tensordot": With(
            "tensordot", lambda x, w: torch.tensordot(x, w, dims=([-1], [0])), w=weight(width, 12)
        ),
        "parts of a weight": With(
            "parts of a weight",
            lambda x, w: F.linear(x, w[: w.shape[0] // 2]) * F.linear(x, w[w.shape[0] // 2 :]).tanh(),
            w=weight(24, width),
        ),
        "stacked weights": With(
            "stacked weights", lambda x, a, b: F.linear(x, torch.cat([a, b])),
            a=weight(8, width), b=weight(12, width),
        ),
        "token": With(
            "class token",
            lambda x, t: torch.cat([t.expand(*x.shape[:-1], 4), x], -1), t=weight(4),
        ),
        "squared weight": With("positive", lambda x, w: F.linear(x, w.exp()), w=weight(8, width)),
        "standardised weight": With(
            "standardised", lambda x, w: F.linear(x, (w - w.mean(1, keepdim=True)) / w.std()),
            w=weight(12, width),
        ),
    }  # fmt: skip
    return ways[draw.one(list(ways))]


LAYERS = (plain, plain, modules)
