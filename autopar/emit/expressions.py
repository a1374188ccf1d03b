"""Writes an operator call as the Python expression that a person would write."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from autopar.emit.statement import Part, Value, Weight
from autopar.ir.graph import Arg, DType, Ref, bare, short

Bound = Mapping[str, Value | Weight]
"""The value or weight for each tensor name among an operator's arguments."""

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=",
    "gt": ">", "ge": ">=", "bitwise_and": "&", "bitwise_or": "|", "__and__": "&", "__or__": "|",
    "__xor__": "^", "bitwise_xor": "^", "pow": "**", "matmul": "@",
}  # fmt: skip
METHODS = {
    "view", "reshape", "transpose", "permute", "unsqueeze", "squeeze", "expand", "flatten", "sum",
    "mean", "split", "chunk", "unbind", "select", "t", "contiguous", "masked_fill", "detach",
    "clone", "to", "cumsum", "amax", "unflatten", "view_as", "expand_as", "type_as", "repeat",
    "new_zeros", "new_ones", "new_full", "narrow", "any", "all", "argmax", "index_select", "gather",
    "neg", "abs", "roll", "index_add", "scatter_add", "repeat_interleave", "logsumexp",
}  # fmt: skip
TORCH = {
    "addmm", "bmm", "mm", "baddbmm", "tanh", "rsqrt", "sqrt", "cos", "sin", "exp", "log", "sigmoid",
    "erf", "reciprocal", "cat", "stack", "arange", "where", "logical_not", "bitwise_not", "clamp",
    "maximum", "minimum", "full", "ones", "zeros", "triu", "tril", "relu", "einsum", "square",
    "full_like", "zeros_like", "ones_like", "softmax", "log_softmax", "batch_norm", "var_mean", "pow",
    "rsub", "outer", "isin", "empty", "scalar_tensor", "rand", "randn", "addbmm", "addmv",
    "mv", "dot", "addr", "logical_and", "logical_or", "logical_xor",
}  # fmt: skip
FUNCTIONAL = {
    "gelu", "linear", "layer_norm", "rms_norm", "group_norm", "conv1d", "conv2d", "conv3d", "silu",
    "leaky_relu", "elu", "softplus", "hardtanh", "relu6", "mish", "hardswish",
    "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "pad", "one_hot", "glu", "prelu",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "pixel_shuffle", "pixel_unshuffle",
}  # fmt: skip
DROPPED = {"device", "layout", "pin_memory", "memory_format", "non_blocking"}


def expression(
    op: str,
    args: tuple[Arg, ...],
    kwargs: tuple[tuple[str, Arg], ...],
    bound: Bound,
    *,
    spelled_out: bool = False,
) -> tuple[Part, ...]:
    """Return the parts of the call: values and weights, with strings in between.

    `spelled_out`: call the operator in `torch.ops`, because Python's syntax would mean something else.
    """
    writer = _Writer(bound)
    name, overload = short(op), op.rsplit(".", 1)[-1]
    kept = tuple((key, value) for key, value in kwargs if key not in DROPPED and value is not None)
    # A writer in `_SPECIAL` reads some arguments by position; if one is a keyword, spell the call out.
    spelled_out = spelled_out or len(args) < _BY_PLACE.get(op, 0)
    special = None if spelled_out else _SPECIAL.get(op)
    if special is not None:
        return special(writer, args, kept)
    if spelled_out:
        return writer.call(f"torch.ops.{op.split('.')[0]}.{bare(op)}.{overload}", args, kept)
    if name in INFIX and len(args) == 2 and not kept:
        return (*writer.left(args[0]), f" {INFIX[name]} ", *writer.arg(args[1]))
    if op.startswith("autopar."):
        return writer.call(name, args, kept)
    if name in METHODS and args and isinstance(args[0], Ref):
        return (*writer.arg(args[0]), *writer.call(f".{name}", args[1:], kept))
    if name in FUNCTIONAL:
        return writer.call(f"F.{name}", args, kept)
    if name in TORCH:
        return writer.call(f"torch.{name}", args, kept)
    return writer.call(f"torch.ops.{op.split('.')[0]}.{bare(op)}.{overload}", args, kept)


class _Writer:
    """Writes arguments; references to tensors become values or weights."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound

    def arg(self, arg: Arg) -> tuple[Part, ...]:
        """Return one argument as parts."""
        if isinstance(arg, Ref):
            return (self._bound[arg.name],)
        if isinstance(arg, DType):
            return (repr(arg),)
        if isinstance(arg, tuple):
            inner = self._joined(self.arg(item) for item in arg)
            return ("[", *inner, "]")
        if isinstance(arg, float) and not math.isfinite(arg):
            return (f'float("{arg}")',)
        return (repr(arg),)

    def left(self, arg: Arg) -> tuple[Part, ...]:
        """Return the left operand of an infix operator; ``-2.0 ** x`` would negate the power."""
        negative = isinstance(arg, (int, float)) and repr(arg).startswith("-")
        return ("(", *self.arg(arg), ")") if negative else self.arg(arg)

    def call(
        self, function: str, args: Iterable[Arg], kwargs: Iterable[tuple[str, Arg]] = ()
    ) -> tuple[Part, ...]:
        """Return ``function(args, key=value)``."""
        written = [self.arg(arg) for arg in args]
        written += [(f"{key}=", *self.arg(value)) for key, value in kwargs]
        return (f"{function}(", *self._joined(written), ")")

    def _joined(self, items: Iterable[tuple[Part, ...]]) -> tuple[Part, ...]:
        parts: list[Part] = []
        for item in items:
            if parts:
                parts.append(", ")
            parts.extend(item)
        return tuple(parts)


Kwargs = tuple[tuple[str, Arg], ...]
Special = Callable[[_Writer, tuple[Arg, ...], Kwargs], tuple[Part, ...]]


def _embedding(writer: _Writer, args: tuple[Arg, ...], kwargs: Kwargs) -> tuple[Part, ...]:
    padding = args[2] if len(args) > 2 else dict(kwargs).get("padding_idx", -1)
    extra: Kwargs = (("padding_idx", padding),) if padding != -1 else ()
    scaled = args[3] if len(args) > 3 else dict(kwargs).get("scale_grad_by_freq", False)
    if scaled:
        extra = (*extra, ("scale_grad_by_freq", True))
    return writer.call("F.embedding", (args[1], args[0]), extra)


def _slice(writer: _Writer, args: tuple[Arg, ...], kwargs: Kwargs) -> tuple[Part, ...]:
    defaults: tuple[Arg, ...] = (0, None, None, 1)
    tensor, dim, start, end, step = (*args, *defaults[len(args) - 1 :])
    if kwargs or not isinstance(dim, int) or dim < 0:
        return writer.call("torch.ops.aten.slice.Tensor", args, kwargs)
    first = "" if start in (0, None) else repr(start)
    last = "" if end in (None, 9223372036854775807) else repr(end)
    stride = "" if step == 1 else f":{step!r}"
    index = ", ".join([":"] * dim + [f"{first}:{last}{stride}"])
    return (*writer.arg(tensor), f"[{index}]")


def _index(writer: _Writer, args: tuple[Arg, ...], kwargs: Kwargs) -> tuple[Part, ...]:
    """Write ``x[:, i]``, with a colon for each dim that is not indexed."""
    tensor, indices = args
    assert isinstance(indices, tuple)
    written: list[Part] = []
    for index in indices:
        written += [
            *((", ",) if written else ()),
            *((":",) if index is None else writer.arg(index)),
        ]
    return (*writer.arg(tensor), "[", *written, "]")


def _softmax(name: str) -> Special:
    def write(writer: _Writer, args: tuple[Arg, ...], kwargs: Kwargs) -> tuple[Part, ...]:
        dtype = args[2] if len(args) > 2 else dict(kwargs).get("dtype")
        extra: Kwargs = () if dtype is None else (("dtype", dtype),)
        return writer.call(f"torch.{name}", args[:2], extra)

    return write


def _attention(writer: _Writer, args: tuple[Arg, ...], kwargs: Kwargs) -> tuple[Part, ...]:
    names = ("attn_mask", "dropout_p", "is_causal")
    defaults: dict[str, Arg] = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False}
    given = {**dict(zip(names, args[3:], strict=False)), **dict(kwargs)}
    used = tuple((key, value) for key, value in given.items() if value != defaults.get(key))
    return writer.call("F.scaled_dot_product_attention", args[:3], used)


def _row_attention(name: str) -> Special:
    """Write attention of a rank's rows, which is always causal and without a mask or dropout."""

    def write(writer: _Writer, args: tuple[Arg, ...], kwargs: Kwargs) -> tuple[Part, ...]:
        named = ("scale", "enable_gqa")
        used = tuple((k, v) for k, v in kwargs if k in named and v not in (None, False))
        return writer.call(name, args[:3], used)

    return write


def _dropout(writer: _Writer, args: tuple[Arg, ...], kwargs: Kwargs) -> tuple[Part, ...]:
    off: Kwargs = (("training", False),) if len(args) > 2 and not args[2] else ()
    named = tuple(("training" if key == "train" else key, value) for key, value in kwargs)
    return writer.call("F.dropout", args[:2], (*off, *named))


def _elu(writer: _Writer, args: tuple[Arg, ...], kwargs: Kwargs) -> tuple[Part, ...]:
    """Use `F.elu` for two arguments at most: its third one is `inplace`, ATen's is `scale`."""
    name = "F.elu" if len(args) < 3 and not kwargs else "torch.ops.aten.elu.default"
    return writer.call(name, args, kwargs)


def _norm(name: str) -> Special:
    """Write a norm without ATen's last argument, which selects a cuDNN kernel."""

    def write(writer: _Writer, args: tuple[Arg, ...], kwargs: Kwargs) -> tuple[Part, ...]:
        named = tuple(item for item in kwargs if item[0] not in ("cudnn_enable", "cudnn_enabled"))
        return writer.call(f"F.{name}", args[:5], named)

    return write


def _loss(name: str) -> Special:
    """Write an elementwise loss, whose reduction is a number in ATen."""

    def write(writer: _Writer, args: tuple[Arg, ...], kwargs: Kwargs) -> tuple[Part, ...]:
        code = args[2] if len(args) > 2 else dict(kwargs).get("reduction", 1)
        assert isinstance(code, int)
        return writer.call(f"F.{name}", args[:2], (("reduction", ("none", "mean", "sum")[code]),))

    return write


def _to(writer: _Writer, args: tuple[Arg, ...], kwargs: Kwargs) -> tuple[Part, ...]:
    given = (*args[1:], *dict(kwargs).values())
    dtype = next((a for a in given if isinstance(a, DType)), None)
    if dtype is None:
        return (*writer.arg(args[0]), ".clone()")
    copy = args[3] if len(args) > 3 else dict(kwargs).get("copy", False)
    copied: Kwargs = (("copy", True),) if copy else ()
    return (*writer.arg(args[0]), *writer.call(".to", (dtype,), copied))


def _split(writer: _Writer, args: tuple[Arg, ...], kwargs: Kwargs) -> tuple[Part, ...]:
    return (*writer.arg(args[0]), *writer.call(".split", args[1:], kwargs))


def _flatten(writer: _Writer, args: tuple[Arg, ...], kwargs: Kwargs) -> tuple[Part, ...]:
    defaults: tuple[Arg, ...] = (0, -1)
    written = (*args[1:], *defaults[len(args) - 1 :])
    while written and written[-1] == defaults[len(written) - 1]:
        written = written[:-1]
    return (*writer.arg(args[0]), *writer.call(".flatten", written, kwargs))


def _repeat_interleave(writer: _Writer, args: tuple[Arg, ...], kwargs: Kwargs) -> tuple[Part, ...]:
    """Write the overload that takes counts alone; the method of a tensor is another overload."""
    return writer.call("torch.repeat_interleave", args, kwargs)


def _constant(writer: _Writer, args: tuple[Arg, ...], kwargs: Kwargs) -> tuple[Part, ...]:
    return writer.call("self.constant", args, kwargs)


_SPECIAL: dict[str, Special] = {
    "aten.embedding.default": _embedding,
    "aten.slice.Tensor": _slice,
    "aten.index.Tensor": _index,
    "aten.softmax.int": _softmax("softmax"),
    "aten.log_softmax.int": _softmax("log_softmax"),
    "aten.scaled_dot_product_attention.default": _attention,
    "autopar.sequence_parallel_attention": _row_attention("sequence_parallel_attention"),
    "autopar.ring_attention": _row_attention("ring_attention"),
    "aten.dropout.default": _dropout,
    "aten.elu.default": _elu,
    "aten.layer_norm.default": _norm("layer_norm"),
    "aten.group_norm.default": _norm("group_norm"),
    "aten.mse_loss.default": _loss("mse_loss"),
    "aten.l1_loss.default": _loss("l1_loss"),
    "aten.to.dtype": _to,
    "aten._to_copy.default": _to,
    "aten.to.dtype_layout": _to,
    "aten.split_with_sizes.default": _split,
    "aten.flatten.using_ints": _flatten,
    "aten.repeat_interleave.Tensor": _repeat_interleave,
    "constant": _constant,
}
_BY_PLACE = {
    "aten.embedding.default": 2, "aten.index.Tensor": 2, "aten.softmax.int": 2,
    "aten.log_softmax.int": 2, "aten.scaled_dot_product_attention.default": 3,
    "autopar.sequence_parallel_attention": 3, "autopar.ring_attention": 3,
    "aten.mse_loss.default": 2, "aten.l1_loss.default": 2,
}  # fmt: skip
"""Number of arguments that a writer in `_SPECIAL` reads by position."""
