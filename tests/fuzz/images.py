"""Layers of (batch, channels, height, width)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.fuzz.draw import Do, Draw, Shape, With


def convolution(draw: Draw, shape: Shape) -> nn.Module:
    """Strided, dilated, grouped, depthwise, padded in several ways."""
    channels = shape[1]
    groups = draw.one([g for g in (1, 1, 1, 2, 4, channels) if channels % g == 0])
    made = channels * draw.one((1, 2)) if groups > 1 else draw.width()
    size = draw.one((1, 3)) if min(shape[2:]) > 2 else 1
    return nn.Conv2d(
        channels, made, size, stride=draw.one((1, 1, 2)), padding=size // 2, groups=groups,
        bias=draw.flag(), padding_mode=draw.one(("zeros", "zeros", "circular", "reflect", "replicate")),
    )  # fmt: skip


def transposed(draw: Draw, shape: Shape) -> nn.Module:
    """A transposed convolution that doubles or keeps the size."""
    channels, made = shape[1], draw.width()
    groups = draw.divisor(channels, (1, 1, 2))
    groups = groups if made % groups == 0 else 1
    if max(shape[2:]) > 8 or draw.flag(0.3):
        return nn.ConvTranspose2d(channels, made, 3, padding=1, groups=groups)
    return nn.ConvTranspose2d(channels, made, 2, stride=2, groups=groups, bias=draw.flag())


def pooling(draw: Draw, shape: Shape) -> nn.Module:
    """Smaller images."""
    if min(shape[2:]) < 4:
        return Do("mean of rows", lambda x: x - x.mean(2, keepdim=True))
    ways: dict[str, nn.Module] = {
        "max": nn.MaxPool2d(2),
        "overlapping": nn.MaxPool2d(3, stride=2, padding=1),
        "average": nn.AvgPool2d(2),
        "same": nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False),
        "adaptive": nn.AdaptiveAvgPool2d((2, 4)),
        "adaptive max": nn.AdaptiveMaxPool2d(2),
        "nearest": Do("down", lambda x: F.interpolate(x, scale_factor=0.5, mode="nearest")),
        "slices": Do("every other", lambda x: x[:, :, ::2, 1::2]),
        "unshuffle": nn.PixelUnshuffle(2),
    }
    return ways[draw.one(list(ways))]


def larger(draw: Draw, shape: Shape) -> nn.Module:
    """Larger images."""
    if max(shape[2:]) > 8:
        return Do("crop", lambda x: x[:, :, 1:-1, 2:-2].contiguous())
    ways: dict[str, nn.Module] = {
        "nearest": nn.Upsample(scale_factor=2, mode="nearest"),
        "bilinear": nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
        "pad": nn.ZeroPad2d((1, 1, 2, 0)),
        "constant": nn.ConstantPad2d(1, 0.5),
    }
    if shape[1] % 4 == 0:
        ways["shuffle"] = nn.PixelShuffle(2)
    return ways[draw.one(list(ways))]


def norms(draw: Draw, shape: Shape) -> nn.Module:
    """Norms of images."""
    channels = shape[1]
    ways: dict[str, nn.Module] = {
        "batch": nn.BatchNorm2d(channels),
        "plain batch": nn.BatchNorm2d(channels, affine=False, track_running_stats=False),
        "group": nn.GroupNorm(draw.divisor(channels, (1, 2, 4)), channels),
        "layer": With(
            "channels last",
            lambda x, n: n(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), norm=nn.LayerNorm(channels),
        ),
    }  # fmt: skip
    if min(shape[2:]) > 1:
        ways["instance"] = nn.InstanceNorm2d(channels, affine=draw.flag())
    return ways[draw.one(list(ways))]


def gates(draw: Draw, shape: Shape) -> nn.Module:
    """Functions of every pixel, and channels weighed by what the whole image says."""
    channels = shape[1]
    narrow = max(channels // 4, 2)
    ways: dict[str, nn.Module] = {
        "relu": nn.ReLU(inplace=True),
        "silu": nn.SiLU(),
        "prelu": nn.PReLU(channels),
        "scale": With(
            "layer scale", lambda x, w: x * w[:, None, None], w=nn.Parameter(torch.randn(channels))
        ),
        "squeeze": With(
            "squeeze and excite",
            lambda x, a, b: x * torch.sigmoid(b(F.relu(a(x.mean((2, 3), keepdim=True))))),
            down=nn.Conv2d(channels, narrow, 1), up=nn.Conv2d(narrow, channels, 1),
        ),
        "vector": With(
            "modulate",
            lambda x, m: x * (1 + m(x.mean((-1, -2)))[:, :, None, None]),
            m=nn.Linear(channels, channels),
        ),
        "softmax": Do("softmax of channels", lambda x: x.softmax(1) * x),
        "linear": With(
            "pointwise", lambda x, m: m(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2),
            m=nn.Linear(channels, channels),
        ),
    }  # fmt: skip
    return ways[draw.one(list(ways))]


def windows(draw: Draw, shape: Shape) -> nn.Module:
    """Shifted windows, shuffled channels."""
    batch, channels, height, width = shape
    rows, columns = draw.divisor(height, (1, 2, 4)), draw.divisor(width, (1, 2))
    groups = draw.divisor(channels, (2, 4, 1))
    mix = nn.Linear(channels, channels)

    def shifted(x: torch.Tensor, mix: nn.Module) -> torch.Tensor:
        x = torch.roll(x.permute(0, 2, 3, 1), (-1, -1), (1, 2))
        tiles = x.view(batch, rows, height // rows, columns, width // columns, channels)
        tiles = tiles.permute(0, 1, 3, 2, 4, 5).reshape(batch * rows * columns, -1, channels)
        tiles = tiles + mix(tiles - tiles.mean(1, keepdim=True))
        tiles = tiles.view(batch, rows, columns, height // rows, width // columns, channels)
        x = tiles.permute(0, 1, 3, 2, 4, 5).reshape(batch, height, width, channels)
        return torch.roll(x, (1, 1), (1, 2)).permute(0, 3, 1, 2)

    def shuffled(x: torch.Tensor) -> torch.Tensor:
        return (
            x.view(batch, groups, channels // groups, height, width)
            .transpose(1, 2)
            .reshape(batch, channels, height, width)
        )

    if draw.flag():
        return With("shifted windows", shifted, mix=mix)
    return Do("shuffle channels", shuffled)


def to_vector(draw: Draw, shape: Shape) -> nn.Module:
    """One vector for an image."""
    ways: dict[str, nn.Module] = {
        "pool": nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        "mean": Do("mean", lambda x: x.mean((2, 3))),
        "flat": Do("flatten", lambda x: torch.flatten(x, 1)),
        "max": Do("amax", lambda x: x.amax(dim=(2, 3))),
    }
    return ways[draw.one(list(ways))]


def to_sequence(draw: Draw, shape: Shape) -> nn.Module:
    """Pixels as places."""
    return Do("tokens", lambda x: x.flatten(2).transpose(1, 2))


LAYERS = (
    convolution,
    convolution,
    transposed,
    pooling,
    larger,
    norms,
    norms,
    gates,
    gates,
    windows,
)
ENDS = (to_vector, to_sequence)
