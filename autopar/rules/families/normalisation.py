"""Rules of norms and softmax: the normalised dims stay whole, or need a local implementation."""

from __future__ import annotations

from autopar.ir.graph import Arg
from autopar.rules.declare import Call, Declared, rule
from autopar.rules.families.letters import keep_whole, names, term


@rule("layer_norm", "rms_norm")
def layer_norm(call: Call) -> Declared:
    """The last dims are normalised; weight and bias have exactly those."""
    shape = call.arg(1, "normalized_shape")
    width = len(shape) if isinstance(shape, tuple) else 1
    letters = names(len(call.shapes[0]))
    whole = keep_whole(letters, range(len(letters) - width, len(letters)))
    affine = [term(whole[-width:])] * (len(call.operands) - 1)
    return Declared(f"{', '.join([term(whole), *affine])} -> {term(whole)}")


@rule("softmax", "log_softmax", "_softmax", "_log_softmax")
def softmax(call: Call) -> Declared:
    """One dim adds up to one."""
    whole = keep_whole(names(len(call.shapes[0])), [_int(call.arg(1, "dim"))])
    return Declared(f"{term(whole)} -> {term(whole)}")


@rule("group_norm")
def group_norm(call: Call) -> Declared:
    """Statistics over channels of a group and all positions; samples and groups are independent.

    A rank is told how many groups are its own (`autopar/rules/local.py`).
    """
    groups = _int(call.arg(1, "num_groups"))
    affine = ["(g c!)"] * (len(call.operands) - 1)
    letters = term(["n", "(g c!)", *(f"s{i}!" for i in range(len(call.shapes[0]) - 2))])
    return Declared(f"{', '.join([letters, *affine])} -> {letters}", sizes={"g": groups})


@rule("instance_norm")
def instance_norm(call: Call) -> Declared | None:
    """Statistics over positions; with running statistics the batch adds to them."""
    if call.is_tensor(3) or call.is_tensor(4):
        return None
    affine = ["c"] * (len(call.operands) - 1)
    letters = term(["n", "c", *(f"s{i}!" for i in range(len(call.shapes[0]) - 2))])
    return Declared(f"{', '.join([letters, *affine])} -> {letters}")


@rule("batch_norm")
def batch_norm(call: Call) -> Declared | None:
    """Statistics over the batch: split channels freely, the batch only through sync_batch_norm."""
    if not call.node.op.startswith("autopar."):
        return None
    letters = term(["n", "c", *(f"s{i}!" for i in range(len(call.shapes[0]) - 2))])
    affine = ["c"] * (len(call.operands) - 1)
    statistics = ["c"] * (len(call.made) - 1)
    return Declared(
        f"{', '.join([letters, *affine])} -> {', '.join([letters, *statistics])}",
        variants={"n": "sync_batch_norm"},
    )


def _int(arg: Arg) -> int:
    if isinstance(arg, int):
        return arg
    raise TypeError(f"expected a number, got {arg!r}")
