"""Layers of (batch, sequence, features)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.fuzz.attention import attention
from tests.fuzz.draw import Do, Draw, Shape, With, weight


def convolution(draw: Draw, shape: Shape) -> nn.Module:
    """A convolution over the sequence."""
    width, made = shape[-1], draw.width()
    groups = draw.one((1, 1, 2, 4, width)) if made % width == 0 or made == width else 1
    size, dilation = draw.one((1, 3, 5)), draw.one((1, 1, 2))
    conv = nn.Conv1d(
        width, made, size, stride=draw.one((1, 1, 2)), padding=dilation * (size // 2),
        dilation=dilation, groups=groups if made % groups == 0 else 1, bias=draw.flag(),
    )  # fmt: skip
    return With("conv1d", lambda x, c: c(x.transpose(1, 2)).transpose(1, 2), conv=conv)


def positions(draw: Draw, shape: Shape) -> nn.Module:
    """Something is added at every place."""
    length, width = shape[1], shape[2]
    way = draw.one(("embedding", "parameter", "sinus", "longer"))
    if way == "embedding":
        return With(
            "positions", lambda x, e: x + e(torch.arange(length, device=x.device)),
            table=nn.Embedding(length, width),
        )  # fmt: skip
    if way == "longer":
        return With("table", lambda x, w: x + w[:length], table=weight(2 * length, width))
    if way == "parameter":
        return With(
            "positions", lambda x, w: x + w, table=nn.Parameter(torch.randn(1, length, width))
        )
    return Do(
        "sinus",
        lambda x: (
            x + torch.sin(torch.arange(length, device=x.device, dtype=x.dtype))[None, :, None]
        ),
    )


def along(draw: Draw, shape: Shape) -> nn.Module:
    """Moves and sums along the sequence."""
    length = shape[1]
    step = draw.one((1, 2, length // 2))
    order = torch.tensor(draw.permutation(length))
    ways: dict[str, nn.Module] = {
        "roll": Do("roll", lambda x: x + torch.roll(x, -step, 1)),
        "cumsum": Do("cumsum", lambda x: x.cumsum(1) / length),
        "flip": Do("flip", lambda x: x + torch.flip(x, (1,))),
        "shift": Do("shift", lambda x: x - F.pad(x, (0, 0, step, 0))[:, :-step]),
        "difference": Do("difference", lambda x: torch.cat([x[:, :1], x[:, 1:] - x[:, :-1]], 1)),
        "order": With("index", lambda x, i: x[:, i], order=order),
        "select": With(
            "index_select", lambda x, i: x.index_select(1, i), order=order[: length // 2]
        ),
        "gather": With(
            "gather",
            lambda x, i: x.gather(1, i[None, :, None].expand(x.shape[0], -1, x.shape[2])),
            order=order,
        ),
        "sort": Do("sort", lambda x: x.sort(1).values),
        "softmax": Do("softmax over places", lambda x: x * x.softmax(1)),
        "first": Do("class token", lambda x: x + x[:, :1]),
        "mean": Do("mean of places", lambda x: x - x.mean(1, keepdim=True)),
        "halves": Do("halves", lambda x: torch.cat([b * 0.5 for b in x.chunk(2, 1)][::-1], 1)),
        "drop": Do("without the last", lambda x: x[:, : length - length // 4]),
        "copy": Do(
            "index_put", lambda x: x.clone().index_put((slice_(x), order[:2]), x[:, :2] * 0.5)
        ),
    }
    return ways[draw.one(list(ways))]


def slice_(x: torch.Tensor) -> torch.Tensor:
    """All rows, as an index that broadcasts."""
    return torch.arange(x.shape[0], device=x.device)[:, None]


def regroup(draw: Draw, shape: Shape) -> nn.Module:
    """Places become features or windows, and back."""
    batch, length, width = shape
    parts = draw.divisor(length, (2, 4))
    way = draw.one(("merge", "windows", "mixer", "split", "unfold"))
    if way == "merge":
        down = nn.Linear(parts * width, width)
        return With(
            "merge", lambda x, d: d(x.view(batch, length // parts, parts * width)), down=down
        )
    if way == "split":
        up = nn.Linear(width, 2 * width)
        return With("split", lambda x, u: u(x).reshape(batch, 2 * length, width), up=up)
    if way == "mixer":
        return With(
            "token mixer",
            lambda x, m: x + m(x.transpose(1, 2)).transpose(1, 2), mix=nn.Linear(length, length),
        )  # fmt: skip
    mix = nn.Linear(width, width)
    if way == "unfold":
        return With("unfold", lambda x, m: m(x.unfold(1, 2, 2).mean(-1)), mix=mix)

    def windows(x: torch.Tensor, mix: nn.Module) -> torch.Tensor:
        rows = x.view(batch, parts, length // parts, width).reshape(-1, length // parts, width)
        rows = rows + mix(rows).softmax(1)
        return rows.view(batch, parts, length // parts, width).reshape(batch, length, width)

    return With("windows", windows, mix=mix)


def recurrent(draw: Draw, shape: Shape) -> nn.Module:
    """An LSTM or a GRU."""
    kind = draw.one((nn.LSTM, nn.GRU))
    cell = kind(shape[2], draw.width(), num_layers=draw.one((1, 2)), batch_first=True)
    return With("recurrent", lambda x, c: c(x)[0], cell=cell)


def norms(draw: Draw, shape: Shape) -> nn.Module:
    """Norms that mix more than the features of a place."""
    length, width = shape[1:]
    way = draw.one(("batch", "group", "instance", "both"))
    if way == "both":
        return nn.LayerNorm((length, width))
    inner: nn.Module = {
        "batch": nn.BatchNorm1d(width),
        "group": nn.GroupNorm(draw.divisor(width, (1, 2, 4)), width),
        "instance": nn.InstanceNorm1d(width, affine=True),
    }[way]
    return With("norm", lambda x, n: n(x.transpose(1, 2)).transpose(1, 2), norm=inner)


def to_vector(draw: Draw, shape: Shape) -> nn.Module:
    """One vector for a sequence."""
    length = shape[1]
    scorer = nn.Linear(shape[2], 1)
    ways: dict[str, nn.Module] = {
        "mean": Do("mean", lambda x: x.mean(1)),
        "max": Do("max", lambda x: x.max(1).values),
        "last": Do("last", lambda x: x[:, -1]),
        "sum": Do("sum", lambda x: x.sum(dim=1) / length),
        "flat": Do("flatten", lambda x: x.flatten(1)),
        "attend": With("pool", lambda x, s: (s(x).softmax(1) * x).sum(1), scorer=scorer),
        "bmm": With(
            "bmm", lambda x, s: torch.bmm(s(x).transpose(1, 2), x).squeeze(1), scorer=scorer
        ),
    }
    return ways[draw.one(list(ways))]


def to_image(draw: Draw, shape: Shape) -> nn.Module:
    """Places as a grid."""
    batch, length, width = shape
    rows = draw.divisor(length, (2, 4))
    return Do(
        "grid", lambda x: x.transpose(1, 2).reshape(batch, width, rows, length // rows).contiguous()
    )


LAYERS = (attention, attention, convolution, positions, along, along, regroup, recurrent, norms)
ENDS = (to_vector, to_image)
