"""One small call per operator and way of calling it; sizes distinct and divisible by two or three.

`t` is a tensor with gradient, `n` one without.  A call with a name ending in ``square`` has equal
sizes, so that a rule with two factors swapped still fits its shapes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from autopar.capture.builder import Builder, looks_like
from autopar.graph import DType, Graph, Node, Origin, Ref
from autopar.operators import bind, callable_of
from tests.rules.values import draw


@dataclass(frozen=True, eq=False)
class Given:
    """A tensor argument; the same object twice is the same tensor twice."""

    shape: tuple[int, ...]
    dtype: str = "float64"
    gradient: bool = True


@dataclass(frozen=True)
class Example:
    """An operator call."""

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def name(self) -> str:
        """What the test is called."""
        return f"{self.op.split('.', 1)[1]}{':' if self.note else ''}{self.note}"


def t(*shape: int) -> Given:
    """A tensor with gradient."""
    return Given(shape)


def n(*shape: int, dtype: str = "float64") -> Given:
    """A tensor without gradient."""
    return Given(shape, dtype, False)


def ids(*shape: int) -> Given:
    """Indices or class labels."""
    return n(*shape, dtype="int64")


def mask(*shape: int) -> Given:
    """Booleans."""
    return n(*shape, dtype="bool")


def build(example: Example) -> tuple[Graph, Node]:
    """The call as the one operator of a graph, with the flags that capture would give it."""
    builder = Builder()
    names: dict[Given, str] = {}

    def argument(value: Any) -> Any:
        if isinstance(value, Given):
            if value not in names:
                names[value] = f"t{len(names)}"
                _leaf(builder, names[value], value)
            return Ref(names[value])
        return tuple(map(argument, value)) if isinstance(value, (tuple, list)) else value

    op = (
        example.op
        if example.op.count(".") > 1 or "autopar" in example.op
        else f"{example.op}.default"
    )
    args = tuple(map(argument, example.args))
    kwargs = tuple((key, argument(value)) for key, value in example.kwargs.items())
    probe = Node("made", op, args, kwargs)
    made = _values(probe, builder)
    cut = ("out1", "out2") if op == "autopar.batch_norm" else ()
    builder.emit(op, args, kwargs, made, Origin(), gradient=True, cut=cut)
    graph = Graph(example.name, tuple(builder.nodes), None)
    return graph, graph.nodes[-1]


def _leaf(builder: Builder, name: str, given: Given) -> None:
    value = torch.zeros(given.shape, dtype=getattr(torch, given.dtype))
    tensor = looks_like(name, value, given.gradient)
    kind = "parameter" if given.gradient else "input"
    builder.leaf(Node(name, kind, (), (), (tensor,), name))


def _values(probe: Node, builder: Builder) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    operands = draw(probe, tuple(builder.tensors[name] for name in probe.operands), generator)
    values = iter(operands)
    args = [bind(arg, lambda _: next(values)) for arg in probe.args]
    kwargs = {key: bind(arg, lambda _: next(values)) for key, arg in probe.kwargs}
    made = callable_of(probe.op)(*args, **kwargs)
    parts = made if isinstance(made, (tuple, list)) else (made,)
    return {f"out{place}": part for place, part in enumerate(parts)}


def _call(op: str, *args: Any, note: str = "", **kwargs: Any) -> Example:
    return Example(op if op.startswith("autopar") else f"aten.{op}", args, kwargs, note)


F64, INT = DType("float64"), DType("int64")

CONTRACTIONS = (
    _call("linear", t(6, 9, 12), t(18, 12), t(18)),
    _call("linear", t(6, 12), t(18, 12), note="no bias"),
    _call("linear", t(12), t(18, 12), t(18), note="vector"),
    _call("linear", t(6, 12), t(12), note="weight vector"),
    _call("linear", t(6, 6), t(6, 6), t(6), note="square"),
    _call("addmm", t(18), t(6, 12), t(12, 18)),
    _call("addmm", t(6, 18), t(6, 12), t(12, 18), note="matrix"),
    _call("addmm", t(1, 18), t(6, 12), t(12, 18), note="row"),
    _call("addmm", t(6, 1), t(6, 12), t(12, 18), note="column"),
    _call("addmm", t(1), t(6, 12), t(12, 18), note="one"),
    _call("addmm", t(), t(6, 12), t(12, 18), note="scalar"),
    _call("addmm", t(18), t(6, 12), t(12, 18), beta=2, note="beta"),
    _call("addmm", t(6, 6), t(6, 6), t(6, 6), note="square"),
    _call("mm", t(6, 12), t(12, 18)),
    _call("mm", t(6, 6), t(6, 6), note="square"),
    _call("bmm", t(6, 9, 12), t(6, 12, 18)),
    _call("bmm", t(6, 6, 6), t(6, 6, 6), note="square"),
    _call("matmul", t(6, 9, 12), t(12, 18)),
    _call("matmul", t(1, 6, 9, 12), t(10, 1, 12, 18), note="broadcast"),
    _call("matmul", t(6, 9, 12), t(12), note="vector right"),
    _call("matmul", t(12), t(6, 12, 18), note="vector left"),
    _call("matmul", t(12), t(12), note="dot"),
    _call("matmul", t(6, 6, 6), t(6, 6, 6), note="square"),
    _call("matmul", (_same := t(6, 6)), _same, note="itself"),
)

Q, K, V = (6, 12, 18, 9), (6, 12, 14, 9), (6, 12, 14, 10)
ATTENTION = (
    _call("scaled_dot_product_attention", t(*Q), t(*K), t(*V)),
    _call("scaled_dot_product_attention", t(*Q), t(*K), t(*V), n(18, 14), note="mask"),
    _call("scaled_dot_product_attention", t(*Q), t(*K), t(*V), t(6, 12, 18, 14), note="bias"),
    _call("scaled_dot_product_attention", t(*Q), t(*K), t(*V), mask(6, 1, 1, 14), note="padding"),
    _call("scaled_dot_product_attention", t(*Q), t(*Q), t(*Q), None, 0.0, True, note="causal"),
    _call(
        "scaled_dot_product_attention", t(6, 12, 18, 9), t(6, 6, 14, 9), t(6, 6, 14, 10), None, 0.0,
        False, scale=0.3, enable_gqa=True, note="grouped",
    ),
    _call(
        "scaled_dot_product_attention", t(4, 18, 6, 9), t(4, 3, 6, 9), t(4, 3, 6, 10), mask(6, 6),
        0.0, False, enable_gqa=True, note="grouped mask",
    ),
    _call("scaled_dot_product_attention", t(12, 18, 9), t(12, 14, 9), t(12, 14, 10), note="3-d"),
    _call(
        "scaled_dot_product_attention", t(6, 12, 18, 9), t(1, 12, 14, 9), t(1, 12, 14, 10),
        note="shared keys",
    ),
    _call(
        "scaled_dot_product_attention", t(6, 6, 6, 6), t(6, 6, 6, 6), t(6, 6, 6, 6), note="square"
    ),
)  # fmt: skip

CONVOLUTIONS = (
    _call("conv1d", t(6, 12, 14), t(18, 12, 3), t(18)),
    _call("conv1d", t(6, 12, 12), t(18, 12, 3), None, [1], [1], [1], 1, note="no bias"),
    _call("conv2d", t(6, 12, 8, 10), t(18, 12, 3, 3), t(18), [1, 1], [1, 1]),
    _call(
        "conv2d", t(6, 12, 8, 10), t(18, 4, 3, 3), t(18), [1, 1], [1, 1], [1, 1], 3, note="groups"
    ),
    _call("conv2d", t(12, 8, 10), t(18, 12, 3, 3), t(18), note="no batch"),
    _call("conv2d.padding", t(6, 12, 8, 9), t(18, 12, 3, 3), t(18), [1, 1], "same"),
    _call("conv3d", t(6, 12, 4, 8, 10), t(18, 12, 2, 3, 3), t(18)),
    _call("max_pool1d", t(6, 12, 18), [3]),
    _call("max_pool2d", t(6, 15, 12, 18), [2, 2]),
    _call("max_pool2d", t(15, 12, 18), [3, 3], note="no batch"),
    _call("max_pool3d", t(6, 9, 12, 4, 8), [2, 2, 2]),
    _call("avg_pool1d", t(6, 12, 18), [3]),
    _call("avg_pool2d", t(6, 15, 12, 18), [2, 2]),
    _call("conv1d", t(6, 12, 10), t(12, 4, 3), None, [1], [1], [1], 3, note="groups"),
    _call("conv3d", t(12, 4, 8, 10), t(18, 12, 2, 3, 3), t(18), note="no batch"),
    _call("avg_pool2d", t(15, 12, 18), [3, 3], [1, 1], [1, 1], True, note="no batch"),
    _call("avg_pool3d", t(6, 9, 12, 4, 8), [2, 2, 2]),
    _call("adaptive_avg_pool1d", t(6, 12, 18), [9]),
    _call("adaptive_avg_pool2d", t(6, 15, 12, 18), [6, 9]),
    _call("adaptive_avg_pool3d", t(6, 9, 12, 4, 8), [6, 2, 4]),
    _call("adaptive_max_pool2d", t(6, 15, 12, 18), [6, 9]),
)

ONE_TO_ONE = tuple(
    _call(name, t(6, 9, 12))
    for name in (
        "abs", "acos", "asin", "atan", "celu", "ceil", "cos", "cosh", "elu", "erf", "erfc", "exp",
        "expm1", "floor", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log", "log1p",
        "log2", "log_sigmoid", "mish", "reciprocal", "relu", "relu6", "round", "rsqrt", "selu",
        "sigmoid", "sign", "silu", "sin", "sinh", "softplus", "sqrt", "square", "tan", "tanh", "neg",
        "clone", "alias", "contiguous", "positive", "detach", "_to_copy",
    )
)  # fmt: skip
ELEMENTWISE = (
    *ONE_TO_ONE,
    _call("dropout", t(6, 9), 0.0, True, note="its masks are tested on real processes"),
    _call("clamp", t(6, 9), -0.5, 0.5),
    _call("clamp.Tensor", t(6, 9), t(9), t(6, 1)),
    _call("clamp_min", t(6, 9), 0.1),
    _call("clamp_min.Tensor", t(6, 9), t(9)),
    _call("clamp_max", t(6, 9), 0.1),
    _call("clamp_max.Tensor", t(6, 9), t(9)),
    _call("logical_not", mask(6, 9)),
    _call("pow.Tensor_Scalar", t(6, 9), 3),
    _call("pow.Scalar", 2.0, t(6, 9)),
    _call("pow.Tensor_Tensor", t(6, 9), t(9)),
    _call("add.Scalar", t(6, 9), 2.0),
    _call("sub.Scalar", t(6, 9), 2.0),
    _call("rsub.Scalar", t(6, 9), 2.0),
    _call("mul.Scalar", t(6, 9), 2.0),
    _call("div.Scalar", t(6, 9), 2.0),
    _call("div.Scalar_mode", t(6, 9), 0.2, rounding_mode="floor"),
    _call("to.dtype", t(6, 9), F64),
    _call("to.dtype", t(6, 9), INT, note="int"),
    _call("to.dtype", n(6, 9), INT, note="int without gradient"),
    _call("to.dtype", ids(6, 9), F64, note="from int"),
    _call("to.dtype", mask(6, 9), F64, note="from bool"),
    _call("_to_copy", ids(6, 9), dtype=DType("bool"), note="to bool"),
    _call("clone", mask(6, 9), note="bool"),
    _call("add.Tensor", t(6, 9, 12), t(9, 12)),
    _call("add.Tensor", t(6, 9, 12), t(9, 1), note="stretched"),
    _call("add.Tensor", t(6, 9, 12), t(), alpha=3, note="scalar"),
    _call("add.Tensor", t(6, 9), 2.0, note="number"),
    _call("add.Tensor", t(6, 6), t(6, 6), note="square"),
    _call("add.Tensor", t(6, 9), n(6, 9), note="one without gradient"),
    _call("add.Tensor", t(2, 3), t(3), note="as small as the mesh"),
    _call("add.Tensor", (_same := t(6, 9)), _same, note="itself"),
    _call("add.Tensor", mask(6, 9), mask(6, 9), note="bool"),
    _call("sub.Tensor", t(6, 1, 12), t(9, 12)),
    _call("sub.Tensor", t(6, 9), 2.0, note="number"),
    _call("mul.Tensor", t(6, 9, 12), t(9, 12)),
    _call("mul.Tensor", t(6, 9), 2.0, note="number"),
    _call("mul.Tensor", t(6, 9), mask(6, 9), note="mask"),
    _call("mul.Tensor", mask(6, 9), mask(9), note="bool"),
    _call("mul.Tensor", (_same := t(6, 9)), _same, note="itself"),
    _call("mul.Tensor", t(6, 6), t(6, 6), note="square"),
    _call("mul.Tensor", ids(6, 9), ids(9), note="integers"),
    _call("div.Tensor", n(6, 9), ids(9), note="by integers"),
    _call("neg", ids(6, 9), note="integers"),
    _call("sub.Tensor", ids(6, 1), ids(9), note="integers"),
    _call("div.Tensor", t(6, 9, 12), t(9, 12)),
    _call("div.Tensor", t(6, 9), 3.0, note="number"),
    _call("div.Tensor", t(), ids(), note="mean"),
    _call("div.Tensor_mode", t(6, 9), t(9), rounding_mode="floor"),
    _call("maximum", t(6, 9), t(9)),
    _call("minimum", t(6, 9), t(6, 1)),
    _call("where.self", mask(9), t(6, 9), t(6, 1)),
    _call("where.ScalarSelf", mask(6, 9), 1.5, t(6, 9)),
    _call("where.ScalarOther", mask(6, 9), t(6, 9), 1.5),
    _call("masked_fill.Scalar", t(6, 9, 12), mask(9, 1), 1.5),
    _call("masked_fill.Tensor", t(6, 9, 12), mask(9, 12), t()),
    _call("atan2", t(6, 9), t(9)),
    *(_call(f"{name}.Tensor", t(6, 9), t(9)) for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    *(_call(f"{name}.Scalar", n(6, 9), 0.0) for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    _call("logical_and", mask(6, 9), mask(9)),
    _call("logical_or", mask(6, 9), mask(9)),
    _call("bitwise_and.Tensor", mask(6, 9), mask(9)),
    _call("bitwise_or.Tensor", mask(6, 9), mask(9)),
    _call("fmod.Tensor", t(6, 9), t(9)),
    _call("remainder.Tensor", t(6, 9), t(9)),
    _call("lerp.Tensor", t(6, 9), t(6, 9), t(6, 9)),
    _call("lerp.Scalar", t(6, 9), t(9), 0.3),
    _call("addcmul", t(6, 9), t(9), t(6, 1), value=0.5),
    _call("addcdiv", t(6, 9), t(9), t(6, 1)),
    _call("rsub.Tensor", t(6, 9), t(9)),
)

INDEXING = (
    _call("embedding", t(12, 18), ids(6, 9)),
    _call("embedding", t(12, 18), ids(6, 9), 3, note="padding"),
    _call("embedding", t(12, 18), ids(6, 9), -1, True, note="by frequency"),
    _call("embedding", t(12, 18), ids(), note="one index"),
)

LOSSES = (
    _call("autopar.cross_entropy_sum", t(18, 12), ids(18)),
    _call("autopar.cross_entropy_sum", t(18, 12), ids(18), None, -100, 0.1, note="smoothed"),
    _call("autopar.cross_entropy_sum", t(18, 12), ids(18), None, 3, 0.0, note="class ignored"),
    _call("autopar.cross_entropy_sum", t(18, 12), ids(18), n(12), -100, 0.1, note="weighted"),
    _call("autopar.cross_entropy_sum", t(18, 12, 10), ids(18, 10), note="positions"),
    _call("autopar.cross_entropy_sum", t(12), ids(), note="vector"),
    _call("autopar.count_valid", ids(18, 6)),
    _call("autopar.count_valid", ids(18), -100, n(6), note="weighted"),
    _call("mse_loss", t(6, 9), t(6, 9), 2),
    _call("mse_loss", t(6, 9), t(6, 9), 1, note="mean"),
    _call("l1_loss", t(6, 9), t(9), 2),
    _call("smooth_l1_loss", t(6, 9), t(6, 9), 2, 0.5),
    _call("huber_loss", t(6, 9), t(6, 9), 2, 0.5),
    _call("binary_cross_entropy", t(6, 9), n(6, 9), n(9), 2),
    _call("binary_cross_entropy_with_logits", t(6, 9), n(6, 9), None, n(9), 2),
    _call("kl_div", t(6, 9), n(6, 9), 2),
)

NORMS = (
    _call("layer_norm", t(6, 9, 12), [12], t(12), t(12)),
    _call("layer_norm", t(6, 9, 12), [9, 12], note="two dims"),
    _call("layer_norm", t(6, 12), [12], None, t(12), note="no weight"),
    _call("rms_norm", t(6, 9, 12), [12], t(12)),
    _call("softmax.int", t(6, 9, 12), -1),
    _call("softmax.int", t(6, 6), 0, note="square"),
    _call("softmax.int", t(), -1, note="scalar"),
    _call("log_softmax.int", t(6, 9, 12), 1),
    _call("_softmax", t(6, 9, 12), 2, False),
    _call("_log_softmax", t(6, 9, 12), 0, False),
    _call("group_norm", t(6, 18, 9), 3, t(18), t(18)),
    _call("group_norm", t(6, 18, 4, 9), 3, note="plain"),
    _call("autopar.batch_norm", t(12, 6, 9), t(6), t(6), n(6), n(6), 0.1, 1e-5),
    _call("autopar.batch_norm", t(18, 6), None, None, n(6), n(6), 0.1, 1e-5, note="plain"),
    _call("batch_norm", t(12, 6, 9), t(6), t(6), n(6), n(6), False, 0.1, 1e-5, False),
)

REDUCTIONS = (
    _call("sum", t(6, 9)),
    _call("sum.dim_IntList", t(6, 9, 12), [-1, 0]),
    _call("sum.dim_IntList", t(6, 9, 12), [1], True, note="kept"),
    _call("sum", ids(6, 9), note="integers"),
    _call("sum", t(), note="scalar"),
    _call("sum.dim_IntList", t(6, 9), None, note="no dim"),
    _call("amax", t(6, 9), note="no dim"),
    _call("var.correction", t(6, 9), None, correction=1, note="no dim"),
    _call("mean.dim", t(6, 9), None, note="no dim"),
    _call("any", mask(6, 9)),
    _call("sum", mask(6, 9), note="bool"),
    _call("sum.dim_IntList", t(6, 6, 6), [1], note="square"),
    _call("mean", t(6, 9)),
    _call("mean.dim", t(6, 9, 12), [1], True),
    _call("amax", t(6, 9, 12), [0]),
    _call("amin", t(6, 9, 12), [0, -1]),
    _call("var.correction", t(6, 9, 12), [1], correction=1),
    _call("var", t(6, 9), False),
    _call("var.dim", t(6, 9, 12), [1], True),
    _call("std.correction", t(6, 9, 12), [-1], correction=0, keepdim=True),
    _call("logsumexp", t(6, 9, 12), [2]),
    _call("all", mask(6, 9)),
    _call("all.dim", mask(6, 9, 12), 1),
    _call("any.dim", mask(6, 9, 12), -1, True),
    _call("any.dims", mask(6, 9, 12), [0, 1]),
    _call("prod.dim_int", t(6, 9, 12), 1),
    _call("norm.ScalarOpt_dim", t(6, 9, 12), 2, [1]),
    _call("norm.Scalar", t(6, 9), 2),
    _call("linalg_vector_norm", t(6, 9, 12), 2, [0]),
    _call("argmax", t(6, 9, 12), 1),
    _call("argmax", n(6, 9), note="all"),
    _call("argmin", t(6, 9, 12), -1, True),
    _call("cumsum", t(6, 9, 12), 1),
    _call("cumprod", t(6, 9, 12), -1),
    _call("sort", t(6, 9, 12), 1),
    _call("sort.stable", t(6, 9, 12), stable=True, dim=0),
    _call("topk", t(6, 9, 12), 3, 1),
    _call("topk", t(6, 9, 12), 12, note="all"),
    _call("flip", t(6, 9, 12), [0, 2]),
    _call("roll", t(6, 9, 12), [2], [1]),
    _call("roll", t(6, 9), [2], note="flat"),
)

SHAPES = (
    _call("transpose.int", t(6, 9, 12), 0, -1),
    _call("transpose.int", t(6, 6), 0, 1, note="square"),
    _call("t", t(6, 9)),
    _call("permute", t(6, 9, 12), [2, 0, 1]),
    _call("permute", t(6, 6, 6), [2, 0, 1], note="square"),
    _call("movedim.int", t(6, 9, 12), 0, 2),
    _call("movedim.intlist", t(6, 9, 12), [0, 1], [-1, 0]),
    _call("movedim.int", t(6, 6, 6), 0, 2, note="square"),
    _call("numpy_T", t(6, 9)),
    _call("mT", t(6, 9, 12)),
    _call("split.Tensor", t(6, 18), 6, 1),
    _call("split.Tensor", t(6, 18), 4, 1, note="rest"),
    _call("split.Tensor", t(18, 9), 6, dim=0, note="by keyword"),
    _call("split_with_sizes", t(6, 18), [6, 6, 6], -1),
    _call("split_with_sizes", t(6, 18), [6, 12], 1, note="unequal"),
    _call("split_with_sizes", t(18, 9), [6, 6, 6], note="first dim"),
    _call("chunk", t(6, 24), 2, -1),
    _call("chunk", t(6, 15), 4, -1, note="rest"),
    _call("chunk", t(18, 9), 3, note="first dim"),
    _call("tensor_split.sections", t(6, 18), 3, 1),
    _call("tensor_split.indices", t(6, 18), [6, 12], 1),
    _call("unbind.int", t(6, 3, 9), 1),
    _call("select.int", t(6, 9, 12), 1, 2),
    _call("slice.Tensor", t(6, 9, 12), 1, 3, 9),
    _call("slice.Tensor", t(6, 9, 12), -1, 0, 12, 2, note="step"),
    _call("slice.Tensor", t(6, 9, 12), 1, 0, 9, note="all"),
    _call("narrow", t(6, 9, 12), 1, 3, 6),
    _call("pad", t(6, 9, 12), [0, 3]),
    _call("pad", t(6, 9, 12), [0, 0, 3, 0], note="inner"),
    _call("pad", t(6, 9, 12), [0, 3], mode="constant", value=2.0, note="keywords"),
    _call("pad", t(6, 9, 12), [0, 3], "constant", 1.5, note="value"),
    _call("pad", t(6, 9, 12), [3, 3], "reflect", note="reflect"),
    _call("pad", t(6, 9, 12), [3, -3], note="shifted"),
    _call("constant_pad_nd", t(6, 9, 12), [3, 0], 0.0),
    _call("constant_pad_nd", t(6, 9, 12), [3, -3], 1.0, note="shifted"),
    _call("repeat_interleave.self_int", t(6, 9, 12), 2, 1),
    _call("repeat_interleave.self_int", t(6, 9), 2, note="flat"),
    _call("cat", [t(6, 9), t(6, 9)], 1),
    _call("cat", [t(6, 9), t(12, 9)], 0, note="unequal"),
    _call("cat", [t(6, 12), n(6, 12)], -1, note="one without gradient"),
    _call("concat", [t(6, 9), t(6, 9), t(6, 9)]),
    _call("stack", [t(6, 9), t(6, 9)], 1),
    _call("stack", [t(6, 9), t(6, 9), t(6, 9)], -1, note="last"),
    _call("stack", [t(6, 6), t(6, 6)], 2, note="square"),
)

VIEWS = (
    _call("view", t(6, 9, 12), [54, 12]),
    _call("view", t(6, 12, 18), [6, 12, 3, 6], note="heads"),
    _call("view", t(6, 6), [36], note="square"),
    _call("view", t(6, 4), [3, 8], note="ragged ends"),
    _call("view", t(4, 6, 9), [12, 2, 9], note="crossing"),
    _call("view", t(6, 12), [6, 6, 2], note="split"),
    _call("view", t(6, 2, 3), [6, 3, 2], note="ragged"),
    _call("view", t(6, 9), [1, 6, 1, 9], note="ones"),
    _call("view.dtype", n(6, 9), INT),
    _call("reshape", t(6, 9, 12), [6, 108]),
    _call("_unsafe_view", t(54, 12), [6, 9, 12]),
    _call("flatten.using_ints", t(6, 9, 12), 1),
    _call("unflatten.int", t(6, 18), -1, [3, 6]),
    _call("unflatten.int", t(18, 9), 0, [6, -1], note="minus one"),
    _call("squeeze", t(6, 1, 9)),
    _call("squeeze", t(2, 1, 3), note="as small as the mesh"),
    _call("squeeze.dim", t(6, 1, 9), 1),
    _call("squeeze.dim", t(2, 1, 3), 0, note="as small as the mesh"),
    _call("squeeze.dims", t(3, 1, 2), [0, 1], note="as small as the mesh"),
    _call("unsqueeze", t(6, 9), 1),
    _call("view_as", t(6, 9), n(54)),
    _call("reshape_as", t(6, 9), n(54)),
    _call("expand", t(6, 1, 9), [6, 12, 9]),
    _call("expand", t(9), [6, 12, 9], note="new dims"),
    _call("expand", t(6, 1, 9), [-1, 12, -1], note="minus one"),
    _call("broadcast_to", t(1, 9), [6, 9]),
    _call("expand_as", t(1, 9), n(6, 9)),
)

UNRULED = (
    _call("gather", t(6, 9), 1, ids(6, 12)),
    _call("triu", t(6, 9)),
    _call("full", [6, 9], 1.0, dtype=F64),
)

FAMILIES = {
    "contraction": CONTRACTIONS, "attention": ATTENTION, "convolution": CONVOLUTIONS,
    "elementwise": ELEMENTWISE, "indexing": INDEXING, "loss": LOSSES, "normalisation": NORMS,
    "reduction": REDUCTIONS, "shape": SHAPES, "views": VIEWS, "unruled": UNRULED,
}  # fmt: skip
EXAMPLES = tuple(example for family in FAMILIES.values() for example in family)
