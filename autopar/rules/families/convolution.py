"""Rules of convolutions: samples, channels and groups may be split, positions may not."""

from __future__ import annotations

from autopar.rules.declare import Call, Declared, rule


@rule("conv1d", "conv2d", "conv3d")
def convolution(call: Call) -> Declared | None:
    """The weight is [out, in / groups, kernel]; no batch is allowed.

    Groups are factors of both channels; a rank is told how many are its own (`autopar/rules/local.py`).
    """
    return _declared(call, "{o} i")


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed(call: Call) -> Declared | None:
    """The weight is [in, out / groups, kernel]."""
    return _declared(call, "{i} o")


def _declared(call: Call, weight: str) -> Declared | None:
    if "groups" in dict(call.node.kwargs):
        return None
    groups = call.arg(6, "groups", 1)
    assert isinstance(groups, int)
    channels = {"i": "(g i)", "o": "(g o)"} if groups > 1 else {"i": "i", "o": "o"}
    space = len(call.shapes[1]) - 2
    n = "n" if len(call.shapes[0]) == len(call.shapes[1]) else ""
    read, kernel, made = (" ".join(f"{name}{i}!" for i in range(space)) for name in "skp")
    bias = len(call.operands) == 3
    linear = (frozenset({0, 2}), frozenset({1, 2})) if bias else (frozenset({0}), frozenset({1}))
    text = f"{n} {{i}} {read}, {weight} {kernel}{', + {o}' if bias else ''} -> {n} {{o}} {made}"
    return Declared(text.format(**channels), linear, {"g": groups} if groups > 1 else {})
