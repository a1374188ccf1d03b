"""Convolutions and pooling: samples and channels split, positions stay whole."""

from __future__ import annotations

from autopar.rules.declare import Call, Declared, rule


@rule("conv1d", "conv2d", "conv3d")
def convolution(call: Call) -> Declared:
    """The weight is [out, in / groups, kernel]; grouped channels stay whole; no batch is allowed."""
    space = len(call.shapes[1]) - 2
    n = "n" if len(call.shapes[0]) == len(call.shapes[1]) else ""
    positions = " ".join(f"s{i}!" for i in range(space))
    kernel = " ".join(f"k{i}!" for i in range(space))
    made = " ".join(f"p{i}!" for i in range(space))
    bias = len(call.operands) == 3
    if call.arg(6, "groups", 1) != 1:
        tail = ", o!" if bias else ""
        return Declared(f"{n} c! {positions}, o! i! {kernel}{tail} -> {n} o! {made}")
    tail = ", + o" if bias else ""
    linear = (frozenset({0, 2}), frozenset({1, 2})) if bias else (frozenset({0}), frozenset({1}))
    return Declared(f"{n} i {positions}, o i {kernel}{tail} -> {n} o {made}", linear)


@rule("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
      "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
      "adaptive_max_pool2d")  # fmt: skip
def pooling(call: Call) -> Declared:
    """Windows over the last dims; an average is linear."""
    rank = len(call.shapes[0])
    space = 3 if "3d" in call.node.op else 2 if "2d" in call.node.op else 1
    lead = " ".join(f"b{i}" for i in range(rank - space))
    read = " ".join(f"s{i}!" for i in range(space))
    made = " ".join(f"p{i}!" for i in range(space))
    linear = (frozenset({0}),) if "avg" in call.node.op else ()
    outputs = ", ".join([f"{lead} {made}"] * len(call.made))
    return Declared(f"{lead} {read} -> {outputs}", linear)
