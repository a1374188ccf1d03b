"""How a factor may be padded, by operator; operators not listed here may not be padded.

    free      entries along the factor are independent: any finite padding stays in the padding
    regular   as free, but singular for some values of some operands: these must repeat true entries
    zeros     the factor is summed: a set of operands in which the operator is linear must be zero there
    alike     the factor is summed over losses of pairs: all operands must be zero there
    ignored   the factor is summed over targets: those in the padding must be the ignored index
    counted   an argument of the operator gives the number of true entries
    unread    no index ever points into the padding

"Free" and "zeros" are derived from the rule: a factor that may be split into single entries and occurs
in the output is independent, one that is summed adds up.  In the backward, every operand without the
factor sums over it, so gradients must be zero in the padding: `autopar.sharding.padding` ensures that.
The statements are proved by running operators with garbage in the padding.
"""

from __future__ import annotations

from typing import Literal

from autopar.ir.graph import Node, short
from autopar.rules.instance import Instance

Way = Literal["free", "regular", "zeros", "alike", "ignored", "counted", "unread"]

_SUMS = frozenset(
    [
        "linear", "addmm", "mm", "bmm", "baddbmm", "matmul", "mv", "dot", "outer", "einsum", "sum",
        "inner", "linalg_vecdot",
    ]
)  # fmt: skip
_FREE = _SUMS | frozenset(
    [
        # views and data movement
        "view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "expand",
        "broadcast_to", "transpose", "t", "permute", "movedim", "numpy_T", "mT", "swapaxes",
        "split", "split_with_sizes", "chunk", "unbind", "select", "slice", "narrow", "pad",
        "constant_pad_nd", "cat", "stack", "repeat_interleave", "glu", "clone", "alias", "contiguous",
        "to", "_to_copy", "detach", "full", "zeros", "ones", "flip", "roll", "tril",
        # elementwise, finite and smooth everywhere
        "abs", "clamp", "clamp_min", "clamp_max", "cos", "sin", "elu", "erf", "exp", "gelu",
        "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log_sigmoid", "logical_not", "mish",
        "neg", "relu", "relu6", "round", "selu", "sigmoid", "sign", "silu", "softplus", "square", "tanh",
        "add", "sub", "rsub", "mul", "maximum", "minimum", "where", "masked_fill", "eq", "ne", "lt",
        "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or",
        "bitwise_xor", "bitwise_not", "__and__", "__or__", "__xor__", "dropout", "cumsum",
        # acting along other dims
        "layer_norm", "rms_norm", "group_norm", "softmax", "log_softmax", "_softmax", "_log_softmax",
        "scaled_dot_product_attention", "embedding", "amax", "amin", "mean", "argmax", "argmin",
        "logsumexp", "conv1d", "conv2d", "conv3d", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d",
    ]
)  # fmt: skip
_REGULAR = frozenset(["div", "pow", "sqrt", "rsqrt", "reciprocal", "log", "log1p", "var", "std"])
_GROUPED = frozenset(["group_norm", "conv1d", "conv2d", "conv3d"])
"""Operators with an argument for the number of groups, which is that of true groups."""
_PAIRS = frozenset(["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"])
_TARGETS = frozenset(["cross_entropy_sum", "count_valid"])
_BY_VARIANT: dict[str, Way] = {
    "vocab_parallel_embedding": "unread",
    "vocab_parallel_cross_entropy": "counted",
}
PADDABLE = _FREE | _REGULAR | _PAIRS | _TARGETS
"""All operators for which padding is defined."""


def padding_way(node: Node, instance: Instance, factor: str) -> Way | None:
    """Return how a factor of the operator may be padded; None if it may not."""
    name = short(node.op)
    if not instance.declared or factor in instance.rule.whole or name not in PADDABLE:
        return None
    variant = instance.variants.get(factor)
    if variant:
        return _BY_VARIANT.get(variant)
    if factor in instance.rule.summed:
        every = all(factor in term.factors for term in instance.rule.inputs)
        return _when_summed(name, every)
    if name in _TARGETS or (factor == "g" and name in _GROUPED):
        return None
    read = instance.rule.inputs
    singular = [place for place in singular_places(node) if factor in read[place].factors]
    return "regular" if singular else "free"


def singular_places(node: Node) -> tuple[int, ...]:
    """Return the operands for which some finite values give a non-finite result or derivative."""
    name, every = short(node.op), tuple(range(len(node.operands)))
    if name == "scaled_dot_product_attention":
        return every[3:4]  # a fully masked row gives NaN
    if name == "div":
        return every[1:]
    if node.op == "aten.pow.Tensor_Scalar":
        power = node.args[1]
        smooth = isinstance(power, (int, float)) and power >= 1 and power == int(power)
        return () if smooth else every
    return every if name in _REGULAR else ()


def _when_summed(name: str, in_every_operand: bool) -> Way | None:
    if name in _SUMS:
        return "zeros"
    if name in _PAIRS:
        return "alike" if in_every_operand else None
    return "ignored" if name in _TARGETS else None


def target_place(node: Node) -> int:
    """Return the position of the target operand of an operator with ignored targets."""
    return 1 if short(node.op) == "cross_entropy_sum" else 0


def ignored_index(node: Node) -> int:
    """Return the ignored target index."""
    place = 3 if short(node.op) == "cross_entropy_sum" else 1
    given = node.args[place] if len(node.args) > place else -100
    return given if isinstance(given, int) else -100
