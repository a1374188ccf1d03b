"""Layers of any tensor whose last dim is features: linear maps, norms, gates, views."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.fuzz.draw import Do, Draw, Shape, With, weight

ACTIVATIONS = (
    F.gelu, F.relu, F.silu, torch.tanh, torch.sigmoid, F.softplus, F.elu, F.leaky_relu, F.mish,
    F.hardswish, F.relu6, F.selu, torch.sin, torch.erf, lambda x: F.gelu(x, approximate="tanh"),
    lambda x: x.clamp(-1.0, 0.9), lambda x: x * torch.rsqrt(x.square() + 1.0),
    lambda x: torch.where(x > 0, x, 0.1 * x), lambda x: x.abs().add(1.0).log(),
)  # fmt: skip


def linear(draw: Draw, shape: Shape) -> nn.Module:
    """A linear map to another width."""
    return nn.Linear(shape[-1], draw.width(), bias=draw.flag(0.7))


def activation(draw: Draw, shape: Shape) -> nn.Module:
    """A function of every entry."""
    place = draw.randrange(len(ACTIVATIONS))
    return Do(f"activation {place}", ACTIVATIONS[place])


def mlp(draw: Draw, shape: Shape) -> nn.Module:
    """Up, a function, down."""
    wide = 2 * draw.width()
    act = Do("activation", draw.one(ACTIVATIONS))
    return nn.Sequential(nn.Linear(shape[-1], wide), act, nn.Linear(wide, shape[-1]))


def gated(draw: Draw, shape: Shape) -> nn.Module:
    """Gate and value from one fused projection, or from two."""
    wide = draw.width()
    way = draw.one(("chunk", "split", "halves", "glu", "apart"))
    down = nn.Linear(wide, shape[-1], bias=False)
    if way == "apart":
        gate, up = nn.Linear(shape[-1], wide), nn.Linear(shape[-1], wide)
        return With(
            "swiglu", lambda x, g, u, d: d(F.silu(g(x)) * u(x)), gate=gate, up=up, down=down
        )
    fused = nn.Linear(shape[-1], 2 * wide, bias=draw.flag())

    def forward(x: torch.Tensor, fused: nn.Module, down: nn.Module) -> torch.Tensor:
        both = fused(x)
        if way == "glu":
            return down(F.glu(both, -1))
        if way == "halves":
            return down(both[..., :wide].sigmoid() * both[..., wide:])
        gate, value = both.chunk(2, -1) if way == "chunk" else both.split([wide, wide], dim=-1)
        return down(torch.tanh(gate) * value)

    return With(f"gated by {way}", forward, fused=fused, down=down)


def norm(draw: Draw, shape: Shape) -> nn.Module:
    """A norm over the features."""
    width = shape[-1]
    way = draw.one(("layer", "plain", "rms", "own", "unit", "std"))
    if way == "layer":
        return nn.LayerNorm(width, bias=draw.flag(0.8))
    if way == "plain":
        return nn.LayerNorm(width, elementwise_affine=False)
    if way == "rms":
        return nn.RMSNorm(width, eps=1e-6)
    if way == "unit":
        return Do("normalize", lambda x: F.normalize(x, dim=-1) * width**0.5)
    if way == "std":
        return Do(
            "standardise",
            lambda x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 0.1).sqrt(),
        )
    return With(
        "own rms",
        lambda x, w: w * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
        scale=nn.Parameter(torch.ones(width)),
    )


def einsum(draw: Draw, shape: Shape) -> nn.Module:
    """A product written as an einsum, by heads or plain."""
    width, heads, made = shape[-1], draw.divisor(shape[-1]), draw.one((2, 3, 4))
    way = draw.one(("plain", "heads", "low rank", "matmul"))
    if way == "plain":
        return With("einsum", lambda x, w: torch.einsum("...i,oi->...o", x, w), w=weight(16, width))
    if way == "low rank":
        return With(
            "low rank", lambda x, a, b: x + x @ a @ b, a=weight(width, made), b=weight(made, width)
        )
    if way == "matmul":
        return With("matmul", lambda x, w: torch.matmul(x, w), w=weight(width, 4 * made))
    return With(
        "einsum by heads",
        lambda x, w: torch.einsum("...hi,hio->...ho", x.unflatten(-1, (heads, -1)), w).flatten(-2),
        w=weight(heads, width // heads, 2 * made),
    )


def affine(draw: Draw, shape: Shape) -> nn.Module:
    """A scale, an offset or both, learnt or constant."""
    width = shape[-1]
    way = draw.one(("scale", "both", "buffer", "scalar", "detached", "batch"))
    if way == "scale":
        return With("scale", lambda x, w: x * w, w=nn.Parameter(torch.randn(width)))
    if way == "both":
        parts = {"w": nn.Parameter(torch.ones(width)), "b": nn.Parameter(torch.randn(width))}
        return With("affine", lambda x, w, b: torch.addcmul(b, x, w), **parts)
    if way == "buffer":
        return With("buffer", lambda x, b: x + b, b=torch.randn(width))
    if way == "scalar":
        return With("scalar", lambda x, a: x * a.exp() + 0.5, a=nn.Parameter(torch.tensor(0.1)))
    if way == "detached":
        return Do("detached", lambda x: x * (x.detach() > x.detach().mean()).to(x.dtype) + 0.3 * x)
    return Do("batch statistics", lambda x: x - 0.5 * x.mean(0, keepdim=True))


def views(draw: Draw, shape: Shape) -> nn.Module:
    """Reshapes with literal sizes around something that mixes."""
    batch, width = shape[0], shape[-1]
    lead = math.prod(shape[:-1])
    parts = draw.divisor(width)
    mix = nn.Linear(width, width)
    way = draw.one(("flat", "blocks", "swap", "column", "expand", "unbind"))
    if way == "flat":
        return With("flat", lambda x, m: m(x.reshape(lead, width)).view(x.shape), mix=mix)
    if way == "blocks":
        own = weight(parts, width // parts)
        return With(
            "blocks",
            lambda x, w: (x.reshape(*x.shape[:-1], parts, width // parts) * w).flatten(-2),
            w=own,
        )
    if way == "swap":
        return Do(
            "interleave",
            lambda x: x.unflatten(-1, (parts, -1)).transpose(-1, -2).reshape(x.shape).contiguous(),
        )
    if way == "column":
        return With(
            "columns", lambda x, m: m(x.reshape(batch, -1, width)).reshape(x.shape), mix=mix
        )
    if way == "unbind":
        return Do(
            "unbind",
            lambda x: torch.stack(
                [p * (i + 1) for i, p in enumerate(x.unflatten(-1, (parts, -1)).unbind(-2))], -2
            ).reshape(x.shape),
        )
    return Do(
        "expand", lambda x: (x.unsqueeze(-2).expand(*x.shape[:-1], 3, width) * 0.5).flatten(-2)
    )


def slices(draw: Draw, shape: Shape) -> nn.Module:
    """Parts of the features taken apart and put together again."""
    width = shape[-1]
    cut = draw.one((1, 3, width // 2, width // 4))
    way = draw.one(
        ("rotate", "swap", "strided", "pad", "roll", "flip", "select", "cumsum", "repeat")
    )
    if way == "rotate":
        half = width // 2
        return Do("rotate half", lambda x: x + torch.cat([-x[..., half:], x[..., :half]], -1))
    if way == "swap":
        return Do("swap", lambda x: torch.cat(x.split([cut, width - cut], -1)[::-1], dim=-1))
    if way == "strided":
        return Do("even and odd", lambda x: torch.cat([x[..., 1::2], x[..., ::2]], -1))
    if way == "pad":
        return Do("pad", lambda x: F.pad(x, (1, 3)) * 0.9)
    if way == "roll":
        return Do("roll", lambda x: x + 0.5 * torch.roll(x, cut, -1))
    if way == "flip":
        return Do("flip", lambda x: x * 0.5 + x.flip(-1))
    if way == "cumsum":
        return Do("cumsum", lambda x: torch.cumsum(x, -1) / width)
    if way == "repeat":
        return Do("repeat", lambda x: x.repeat_interleave(2, dim=-1) * 0.7)
    order = torch.tensor(draw.permutation(width)[: max(4, width // 2)])
    return With("index_select", lambda x, i: torch.index_select(x, -1, i), order=order)


def sorting(draw: Draw, shape: Shape) -> nn.Module:
    """Orders and extremes of the features."""
    way = draw.one(("sort", "topk", "amax", "softmax", "argmax", "kth", "minimum", "logsumexp"))
    if way == "sort":
        return Do("sort", lambda x: x + 0.5 * torch.sort(x, dim=-1)[0])
    if way == "topk":
        return Do("topk", lambda x: torch.topk(x, 4, dim=-1).values)
    if way == "amax":
        return Do("amax", lambda x: x - x.amax(-1, keepdim=True))
    if way == "softmax":
        return Do("softmax", lambda x: x * torch.softmax(x, -1, dtype=x.dtype))
    if way == "argmax":
        return Do("argmax", lambda x: x + x.gather(-1, x.argmax(-1, keepdim=True)))
    if way == "kth":
        return Do("topk gate", lambda x: x.scatter(-1, x.topk(2, -1).indices, 0.25))
    if way == "minimum":
        return Do("minimum", lambda x: torch.minimum(x, x.mean(-1, keepdim=True) + 0.5))
    return Do("logsumexp", lambda x: x - torch.logsumexp(x, dim=-1, keepdim=True))


def experts(draw: Draw, shape: Shape) -> nn.Module:
    """A dense mixture: all experts run, a router weighs them."""
    width, count, made = shape[-1], draw.one((2, 3, 4)), draw.width()
    return With(
        "mixture",
        lambda x, r, w: torch.einsum("...e,...i,eio->...o", r(x).softmax(-1), x, w),
        router=nn.Linear(width, count, bias=False),
        w=weight(count, width, made),
    )


LAYERS = (
    linear, linear, activation, mlp, gated, norm, einsum, affine, views, slices, sorting, experts,
)  # fmt: skip
