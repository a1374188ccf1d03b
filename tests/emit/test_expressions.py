"""Every expression that emission writes, run beside the operator it stands for.

The calls are the examples of all rules and some of Python's own traps; each is tried in many dtypes,
layouts of operands and layouts of gradients.  What the operator refuses, the expression refuses.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from autopar.emit import expressions
from autopar.emit.expressions import FUNCTIONAL, INFIX, METHODS, TORCH, expression
from autopar.emit.statement import Value, Weight
from autopar.ir.graph import Arg, DType, Graph, Node, is_random, short
from autopar.ir.placement import Sharding
from autopar.ops.operators import bind, callable_of
from tests.rules.building import Example, build, ids, mask, n, t
from tests.rules.building import call as _call
from tests.rules.examples import EXAMPLES
from tests.rules.values import draw

TRAPS = (
    _call("pow.Scalar", -2.0, t(6, 9), note="negative base"),
    _call("pow.Scalar", -2, ids(6, 9), note="negative integer base"),
    _call("dropout", t(6, 9), 0.5, False, note="evaluation"),
    _call("elu", t(6, 9), 1.5, 1.25, 0.5, note="scaled"),
    _call("elu", t(6, 9), 1.5, note="alpha"),
    _call("layer_norm", t(6, 9), [9], t(9), t(9), 1e-5, False, note="no cuDNN"),
    _call("group_norm", t(6, 9), 3, t(9), t(9), 1e-5, False, note="no cuDNN"),
    _call("full", [3, 2], float("nan"), note="nan"),
    _call("full", [3, 2], float("-inf"), note="inf"),
    _call("full", [3, 2], -0.0, note="negative zero"),
    _call("full", [3, 2], 2**62, note="huge"),
    _call("masked_fill.Scalar", t(6, 9), mask(6, 9), float("nan"), note="nan"),
    _call("clamp", t(6, 9), None, 0.5, note="above"),
    _call("clamp", t(6, 9), -0.5, note="below"),
    _call("logical_and", ids(6, 9), ids(6, 9), note="integers"),
    _call("logical_and", n(6, 9), n(9), note="floats"),
    _call("logical_xor", ids(6, 9), ids(9), note="integers"),
    _call("logical_or", n(6, 9), mask(9), note="mixed"),
    _call("sub.Tensor", t(6, 9), t(9), alpha=2, note="alpha"),
    _call("rsub.Scalar", t(6, 9), 2.0, 3, note="alpha"),
    _call("slice.Tensor", t(6, 9), 1, -4, -1, note="from behind"),
    _call("slice.Tensor", t(6, 9), 0, 4, 2, note="empty"),
    _call("slice.Tensor", t(6, 9), -1, None, None, 2, note="steps"),
    _call("index.Tensor", t(6, 9, 12), [None, ids(4)], note="behind a colon"),
    _call("index.Tensor", t(6, 9, 12), [ids(4), None, ids(4)], note="around a colon"),
    _call("sum.dim_IntList", t(6, 9), [], note="of no dims"),
    _call("logsumexp", t(6, 9), [0], True, note="kept"),
    _call("cumsum", t(6, 9), -1, note="last"),
    _call("softmax.int", t(6, 9), 0, DType("float64"), note="dtype"),
    _call("_to_copy", t(6, 9), note="as it is"),
    _call("_to_copy", t(6, 9), dtype=DType("float64"), note="copied in its own dtype"),
    _call("to.dtype", t(6, 9), DType("float64"), False, True, note="copied"),
    _call("slice.Tensor", t(6, 9), 1, start=2, end=7, note="keywords"),
    _call("softmax.int", t(6, 9), dim=1, note="keyword"),
    _call("flatten.using_ints", t(6, 9, 12), start_dim=1, note="keyword"),
)
OVERLOADS = (
    _call("isin.Tensor_Scalar", ids(6, 9), 3),
    _call("isin.Scalar_Tensor", 3, ids(6, 9)),
    _call("scalar_tensor", 2.5, dtype=DType("float32")),
    _call("where.Scalar", mask(6, 9), 1.5, 2),
    _call("where", mask(6, 9)),
    _call("split.sizes", t(6, 9), [4, 5], 1),
    _call("split", t(6, 9), [4, 5], 1),
    _call("lift_fresh", n(6, 9)),
    *(_call(f"bitwise_{name}.Scalar_Tensor", -6, ids(6, 9)) for name in ("and", "or", "xor")),
    *(_call(f"{name}_like", t(6, 9)) for name in ("zeros", "ones")),
    _call("zeros_like", t(6, 9), dtype=DType("int32"), note="dtype"),
    _call("full_like", t(6, 9), 2.5),
    _call("full_like", ids(6, 9), float("inf"), dtype=DType("float32"), note="dtype"),
    *(_call(f"new_{name}", t(6, 9), [2, 3]) for name in ("zeros", "ones")),
    _call("new_full", t(6, 9), [2, 3], 2.5),
    _call("repeat_interleave.self_Tensor", t(6, 9), ids(9), 1),
    _call("repeat_interleave.Tensor", ids(6)),
    _call("to.other", t(6, 9), n(2, dtype="float32")),
    _call("type_as", t(6, 9), n(2, dtype="float32")),
    _call("conv1d.padding", t(6, 12, 14), t(18, 12, 3), t(18), [1], "same"),
    _call("conv3d.padding", t(6, 12, 4, 8, 10), t(18, 12, 2, 3, 3), None, [1, 1, 1], "valid"),
    _call("var_mean", t(6, 9), False),
    _call("var_mean.dim", t(6, 9), [1], True, True),
    _call("all.dims", mask(6, 9), [0, 1]),
    _call("repeat", t(6, 9), [2, 1, 3]),
    _call("arange", 7),
    _call("arange.start", 2, 7.5),
    _call("arange.start_step", 7, -2, -3, dtype=DType("float64")),
    _call("to.dtype_layout", t(6, 9), dtype=DType("float32")),
    _call("to.dtype_layout", t(6, 9), note="as it is"),
)
ELSEWHERE = {
    "aten.empty.memory_format": "has no values to compare",
    "aten.rand.default": "random numbers are compared on real processes",
    "aten.randn.default": "random numbers are compared on real processes",
    "aten.rand.generator": "a generator is no argument of a graph",
    "aten.randn.generator": "a generator is no argument of a graph",
    "aten.narrow.Tensor": "its start is a number of no graph",
    "aten.einsum.sublist": "einsum writes the other one",
    "aten.to.device": "a device is no argument of a graph",
    "aten.to.prim_Device": "is of TorchScript alone",
    "aten.to.prim_dtype": "is of TorchScript alone",
    "aten.to.prim_other": "is of TorchScript alone",
    "aten.mm.dtype": "runs on GPUs alone",
    "aten.bmm.dtype": "runs on GPUs alone",
    "aten.addmm.dtype": "runs on GPUs alone",
    "aten.baddbmm.dtype": "runs on GPUs alone",
    "autopar.ring_attention": "runs along a mesh axis, in tests/distributed/test_sequences.py",
    "autopar.sequence_parallel_attention": "runs along a mesh axis, as above",
}
"""What emission can write and this file does not run, and why."""
CALLS = (*EXAMPLES, *TRAPS, *OVERLOADS)
DTYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
LAYOUTS = ("contiguous", "transposed", "sliced", "expanded", "channels_last")


def _known(example: Example) -> bool:
    """Whether the expression is one of Python's or torch's, not the operator's own name."""
    name = short(example.op)
    full = example.op if example.op.count(".") > 1 else f"{example.op}.default"
    return (
        name in {*INFIX, *METHODS, *TORCH, *FUNCTIONAL} or full in expressions._SPECIAL
    ) and not example.op.startswith("autopar.")


EMITTED = tuple(example for example in CALLS if _known(example))


def _written(node: Node, spelled_out: bool = False) -> str:
    """The text; operands are names."""
    bound: dict[str, Value | Weight] = {x: Value(x, Sharding(())) for x in node.operands}
    parts = expression(node.op, node.args, node.kwargs, bound, spelled_out=spelled_out)
    return "".join(part if isinstance(part, str) else part.tensor for part in parts)  # type: ignore[union-attr]


def _laid(value: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values, lying otherwise in memory."""
    if layout == "transposed" and value.dim() > 1:
        return value.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "sliced" and value.dim():
        return torch.stack([value, value], -1).flatten(-2)[..., ::2]
    if layout == "expanded" and value.dim() and value.shape[0]:
        return value[:1].expand_as(value)
    if layout == "channels_last" and value.dim() == 4:
        return value.contiguous(memory_format=torch.channels_last)
    return value


def _drawn(graph: Graph, node: Node, dtype: str | None, layout: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = tuple(graph.tensors[name] for name in node.operands)
    values = draw(node, tensors, generator)
    found = {}
    for name, value in zip(node.operands, values, strict=True):
        wanted = dtype if dtype and graph.tensors[name].dtype == "float64" else None
        value = (value * 3).to(getattr(torch, wanted)) if wanted else value
        found[name] = _laid(value, layout)
    return found


def _outcome(run: Any, values: dict[str, torch.Tensor], layout: str) -> Any:
    """Results and gradients, or the kind of error."""
    leaves = {
        name: value.detach().requires_grad_(value.is_floating_point() or value.is_complex())
        for name, value in values.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        try:
            made = run(leaves)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
            return "refused"
        outputs = list(made) if isinstance(made, (tuple, list)) else [made]
        roots = [y for y in outputs if y.requires_grad]
        trained = [x for x in leaves.values() if x.requires_grad]
        gradients: tuple[Any, ...] = ()
        if roots and trained:
            generator = torch.Generator().manual_seed(1)
            fed = [
                _laid(torch.randn(y.shape, generator=generator, dtype=y.dtype), layout)
                for y in roots
            ]
            try:
                gradients = torch.autograd.grad(roots, trained, fed, allow_unused=True)
            except (RuntimeError, NotImplementedError):
                gradients = ("refused",)
        return [*outputs, *gradients]


def _differences(
    graph: Graph, node: Node, text: str, dtype: str | None, layout: str
) -> Iterator[str]:
    values = _drawn(graph, node, dtype, layout)

    def operator(leaves: dict[str, torch.Tensor]) -> Any:
        kwargs = {key: bind(value, leaves) for key, value in node.kwargs}
        return callable_of(node.op)(*(bind(arg, leaves) for arg in node.args), **kwargs)

    def emitted(leaves: dict[str, torch.Tensor]) -> Any:
        return eval(text, {"torch": torch, "F": F, **leaves})

    want, got = _outcome(operator, values, layout), _outcome(emitted, values, layout)
    where = f"{text} of {dtype or 'float64'}, {layout}"
    if isinstance(want, str) or isinstance(got, str) or len(want) != len(got):
        if want is not got and want != got:
            yield f"{where}: {got} instead of {want}"
        return
    for a, b in zip(got, want, strict=True):
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            if a is not b and a != b:
                yield f"{where}: {a} instead of {b}"
        elif (a.dtype, a.shape) != (b.dtype, b.shape):
            yield f"{where}: {a.dtype}{list(a.shape)} instead of {b.dtype}{list(b.shape)}"
        elif not bool(((a == b) | ((a != a) & (b != b))).all()):
            yield f"{where}: other values"


def _all_differences(
    example: Example, dtypes: tuple[str | None, ...], layouts: tuple[str, ...] = LAYOUTS
) -> list[str]:
    graph, node = build(example)
    text = _written(node)
    return [
        line
        for dtype in dtypes
        for layout in layouts
        for line in _differences(graph, node, text, dtype, layout)
    ]


FIXED = tuple(e for e in EMITTED if not is_random(build(e)[1]) or e.note == "evaluation")
"""Random numbers are compared on real processes."""


@pytest.mark.parametrize("example", FIXED, ids=lambda e: e.name)
def test_is_the_operator(example: Example) -> None:
    """In all dtypes in one layout, and in all layouts in one dtype."""
    assert not _all_differences(example, DTYPES, ("transposed",))
    assert not _all_differences(example, ("float64",))


@pytest.mark.slow
@pytest.mark.parametrize("example", FIXED, ids=lambda e: e.name)
def test_is_the_operator_in_all_dtypes_and_layouts(example: Example) -> None:
    assert not _all_differences(example, DTYPES)


@pytest.mark.parametrize(
    ("table", "name", "wrong"),
    [("INFIX", "sub", "+"), ("INFIX", "logical_and", "&"), ("INFIX", "ge", ">")],
)
def test_a_wrong_mapping_is_seen(table: str, name: str, wrong: str) -> None:
    with mock.patch.dict(getattr(expressions, table), {name: wrong}):
        examples = [e for e in CALLS if short(e.op) == name]
        assert any(_all_differences(e, ("int64", "float64"), LAYOUTS[:1]) for e in examples)


def test_a_number_as_index_moves_no_dims() -> None:
    """``x[i, :, j]`` with a tensor `i` of no dims is another shape in Python than in ATen."""
    graph, node = build(_call("index.Tensor", t(6, 9, 12), [ids(), None, ids(4)]))
    assert list(_differences(graph, node, _written(node), None, "contiguous"))
    assert not list(_differences(graph, node, _written(node, True), None, "contiguous"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.0, 2**62, True], ids=str)
def test_constants(value: Arg) -> None:
    parts = expression("constant", ((value, value),), (), {})
    made = eval("".join(map(str, parts)), {"self": SimpleNamespace(constant=torch.tensor)})
    assert made.numpy().tobytes() == torch.tensor([value, value]).numpy().tobytes()


def _written_by_name() -> set[str]:
    """Every overload of ATen that a table's name stands for, as the installed torch has them."""
    names = {*INFIX, *METHODS, *TORCH, *FUNCTIONAL}
    found = {op for op in expressions._SPECIAL if op != "constant"}
    for name in names:
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            schema = getattr(packet, overload)._schema
            made = any("Tensor" in str(value.type) for value in schema.returns)
            outside = "Dimname" in str(schema) or any(each.is_out for each in schema.arguments)
            if made and not outside:
                found.add(f"aten.{name}.{overload}")
    return found


def test_every_mapping_has_an_example() -> None:
    """No name is in a table, and no overload of it in torch, that nothing runs."""
    shown = {build(example)[1].op for example in EMITTED}
    missing = _written_by_name() - shown - set(ELSEWHERE)
    assert not missing, f"no example of {', '.join(sorted(missing))}"
    assert not set(ELSEWHERE) & shown


def test_every_name_is_an_operator() -> None:
    """A name of no operator would never be written, or be another library's."""
    names = {*INFIX, *METHODS, *TORCH, *FUNCTIONAL}
    assert not {name for name in names if not hasattr(torch.ops.aten, name)}
