"""Products that sum over a factor."""

from __future__ import annotations

from autopar.rules.declare import Call, Declared, fixed, rule
from autopar.rules.families.letters import broadcast

BOTH = (frozenset({0}), frozenset({1}))

fixed("n k, k m -> n m", "mm", linear=((0,), (1,)))
fixed("b n k, b k m -> b n m", "bmm", linear=((0,), (1,)))


@rule("linear")
def linear(call: Call) -> Declared:
    """``F.linear``: the weight is [out, in], or [in] for one output."""
    if len(call.shapes) == 2 and len(call.shapes[1]) == 1:
        return Declared("b* i, i -> b*", BOTH)
    if len(call.operands) == 3:
        return Declared("b* i, o i, + o -> b* o", (frozenset({0, 2}), frozenset({1, 2})))
    return Declared("b* i, o i -> b* o", BOTH)


@rule("addmm")
def addmm(call: Call) -> Declared:
    """``torch.addmm``: the bias, of any shape that stretches, comes first; the weight is [in, out]."""
    bias = broadcast(call.shapes[0], call.made[0], ["n", "o"])
    return Declared(f"+ {bias}, n i, i o -> n o", (frozenset({0, 1}), frozenset({0, 2})))


@rule("matmul")
def matmul(call: Call) -> Declared:
    """``@``: batch dims are broadcast; a vector on either side loses its dim."""
    left, right = call.shapes
    out = call.made[0]
    batch_rank = len(out) - (len(left) > 1) - (len(right) > 1)
    batch = out[:batch_rank]
    rows = ["n"] if len(left) > 1 else []
    columns = ["m"] if len(right) > 1 else []
    first = [*_batch(left[:-2], batch), *rows, "k"]
    second = [*_batch(right[:-2], batch), "k", *columns]
    made = [*(f"b{i}" for i in range(batch_rank)), *rows, *columns]
    return Declared(f"{' '.join(first)}, {' '.join(second)} -> {' '.join(made)}", BOTH)


def _batch(shape: tuple[int, ...], out: tuple[int, ...]) -> list[str]:
    offset = len(out) - len(shape)
    return [
        "1" if size == 1 and out[offset + i] != 1 else f"b{offset + i}"
        for i, size in enumerate(shape)
    ]
