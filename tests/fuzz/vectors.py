"""Layers of (batch, features)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.fuzz.draw import Do, Draw, Shape, With, weight


def batch_norm(draw: Draw, shape: Shape) -> nn.Module:
    """Statistics of the whole batch."""
    return nn.BatchNorm1d(shape[1], affine=draw.flag(0.8), momentum=draw.one((0.1, 0.3)))


def crosses(draw: Draw, shape: Shape) -> nn.Module:
    """Products of features with features."""
    width = shape[1]
    parts = draw.divisor(width, (2, 4))
    way = draw.one(("outer", "interaction", "cross", "bilinear", "cosine"))
    if way == "outer":
        return With(
            "outer",
            lambda x, a, b: (a(x).unsqueeze(2) * b(x).unsqueeze(1)).flatten(1),
            a=nn.Linear(width, 4), b=nn.Linear(width, 4),
        )  # fmt: skip
    if way == "cross":
        return With("cross", lambda x, m: x * m(x) + x, m=nn.Linear(width, width))
    if way == "bilinear":
        return With("bilinear", lambda x, m: m(x, x), m=nn.Bilinear(width, width, 8))
    if way == "cosine":
        return With(
            "prototypes",
            lambda x, p: F.cosine_similarity(x[:, None], p[None], dim=-1), p=weight(8, width),
        )  # fmt: skip
    rows, columns = torch.tril_indices(parts, parts, offset=-1)

    def interact(x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        table = x.view(-1, parts, width // parts)
        products = torch.bmm(table, table.transpose(1, 2))
        return torch.cat([x, products[:, rows, columns]], 1)

    return With("interaction", interact, rows=rows, columns=columns)


def neighbours(draw: Draw, shape: Shape) -> nn.Module:
    """Rows of the batch as nodes of a graph, or in another order."""
    count, width = shape
    edges = 2 * count
    source = torch.tensor([draw.randrange(count) for _ in range(edges)])
    target = torch.tensor([draw.randrange(count) for _ in range(edges)])
    mix = nn.Linear(width, width)
    ways: dict[str, nn.Module] = {
        "index_add": With(
            "messages",
            lambda x, s, t, m: x + torch.zeros_like(x).index_add(0, t, m(x)[s]),
            source=source, target=target, mix=mix,
        ),
        "scatter": With(
            "scatter_add",
            lambda x, s, t, m: x
            + torch.zeros_like(x).scatter_add(0, t[:, None].expand(-1, width), m(x[s])),
            source=source, target=target, mix=mix,
        ),
        "order": With("rows", lambda x, i: x[i], order=torch.tensor(draw.permutation(count))),
        "roll": Do("next row", lambda x: x + 0.5 * x.roll(1, 0)),
        "cumsum": Do("cumsum of rows", lambda x: x.cumsum(0) / count),
        "attend": Do("rows attend", lambda x: x + (x @ x.T / width).softmax(-1) @ x),
    }  # fmt: skip
    return ways[draw.one(list(ways))]


def to_sequence(draw: Draw, shape: Shape) -> nn.Module:
    """Features as places."""
    batch, width = shape
    length = draw.divisor(width, (4, 8, 2))
    if draw.flag():
        return Do("places", lambda x: x.view(batch, length, width // length).contiguous())
    wide = nn.Linear(width, 8 * draw.width(of=4))
    return With("places", lambda x, w: w(x).view(batch, 8, -1), wide=wide)


LAYERS = (batch_norm, crosses, neighbours)
ENDS = (to_sequence,)
