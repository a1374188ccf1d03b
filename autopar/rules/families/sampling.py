"""Rules of operators on the last dims: pooling, resizing, patches, pixel and channel shuffles."""

from __future__ import annotations

import math

from autopar.ir.graph import Arg
from autopar.rules.declare import Call, Declared, rule

FIRST = (frozenset({0}),)


def _space(call: Call) -> int:
    """Return the number of last dims that are positions."""
    return next(n for n in (3, 2, 1) if f"{n}d" in call.node.op)


@rule("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
      "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
      "adaptive_max_pool2d", "adaptive_max_pool3d", "max_pool1d_with_indices",
      "max_pool2d_with_indices", "max_pool3d_with_indices", "upsample_nearest1d",
      "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
      "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d",
      "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d",
      "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")  # fmt: skip
def windows(call: Call) -> Declared:
    """All but the last dims are free; an average and an interpolation are linear."""
    rank, space = len(call.shapes[0]), _space(call)
    lead = " ".join(f"b{i}" for i in range(rank - space))
    read = " ".join(f"s{i}!" for i in range(space))
    made = " ".join(f"p{i}!" for i in range(space))
    linear = () if "max_pool" in call.node.op else FIRST
    outputs = ", ".join([f"{lead} {made}"] * len(call.made))
    return Declared(f"{lead} {read} -> {outputs}", linear)


@rule("grid_sampler")
def grid_sampler(call: Call) -> Declared:
    """Places of the result are free: each is looked up by itself."""
    space = len(call.shapes[0]) - 2
    read = " ".join(f"s{i}!" for i in range(space))
    made = " ".join(f"p{i}" for i in range(space))
    return Declared(f"n c {read}, n {made} two! -> n c {made}", FIRST)


def _product(arg: Arg) -> int:
    return math.prod(a for a in arg if isinstance(a, int)) if isinstance(arg, tuple) else 1


@rule("im2col")
def patches(call: Call) -> Declared:
    """Every place of the kernel becomes a channel, inside the channels there were."""
    n = "n" if len(call.shapes[0]) == 4 else ""
    sizes = {"k": _product(call.arg(1, "kernel_size"))}
    return Declared(f"{n} c h! w! -> {n} (c k!) l!", FIRST, sizes)


@rule("col2im")
def unpatched(call: Call) -> Declared:
    """The other way round: overlapping patches add up."""
    n = "n" if len(call.shapes[0]) == 3 else ""
    sizes = {"k": _product(call.arg(2, "kernel_size"))}
    return Declared(f"{n} (c k!) l! -> {n} c h! w!", FIRST, sizes)


@rule("pixel_shuffle", "pixel_unshuffle")
def pixels(call: Call) -> Declared:
    """Channels become positions, or positions channels."""
    factor = call.arg(1, "upscale_factor", call.arg(1, "downscale_factor"))
    assert isinstance(factor, int)
    few, many = "b* (c p! q!) h w", "b* c (h p!) (w q!)"
    if "unshuffle" in call.node.op:
        few, many = many, few
    return Declared(f"{few} -> {many}", FIRST, {"p": factor, "q": factor})


@rule("channel_shuffle")
def channel_shuffle(call: Call) -> Declared:
    """Channels [groups, rest] become [rest, groups]."""
    groups = call.arg(1, "groups")
    assert isinstance(groups, int)
    space = " ".join(f"s{i}" for i in range(len(call.shapes[0]) - 2))
    return Declared(f"n (g! c) {space} -> n (c g!) {space}", FIRST, {"g": groups})
