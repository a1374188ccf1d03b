"""Every local implementation on ranks' shards against the operator on the whole.

In all dtypes, with operands and incoming gradients that lie otherwise in memory.  What the operator
refuses, the local implementation refuses.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from autopar.ir.mesh import Mesh
from autopar.ops.experts import routed_experts
from autopar.ops.operators import batch_norm, count_valid, cross_entropy_sum
from autopar.rules import candidates
from autopar.rules.variants import _TRAFFIC
from autopar.runtime import variants
from tests.rules.building import build, call, ids, mask
from tests.rules.collectives import here, run_on_all

RANKS = 2
DTYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
TOLERANCE = {"float16": 1e-2, "bfloat16": 6e-2, "float32": 2e-5, "complex64": 2e-5}
LAYOUTS = ("contiguous", "transposed", "sliced", "expanded", "channels_last")
FED = (*LAYOUTS, "summed")
REFUSALS = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)


@dataclass(frozen=True)
class Case:
    """A call: operands, of which the named ones are split, and how results and gradients lie.

    `cut` is each operand's dim that is split, or None; `made` is the dim of the first output, or
    "sum", or None where all ranks hold the same.
    """

    variant: str
    whole: Callable[..., Any]
    operands: Callable[[], list[torch.Tensor]]
    cut: tuple[int | None, ...]
    made: int | str | None
    rest: tuple[Any, ...] = ()

    @property
    def local(self) -> Callable[..., Any]:
        """What a rank runs."""
        function = getattr(variants, self.variant)
        return lambda *args: function(*args, axis=here("x"))


def _table(*shape: int) -> Callable[[], list[torch.Tensor]]:
    return lambda: [torch.randn(8, 6), torch.randint(0, 8, shape)]


def _embedding(weight: torch.Tensor, ids: torch.Tensor, padding: int = -1) -> torch.Tensor:
    return torch.ops.aten.embedding.default(weight, ids, padding)  # type: ignore[no-any-return]


def _labelled(rows: int) -> Callable[[], list[torch.Tensor]]:
    def drawn() -> list[torch.Tensor]:
        labels = torch.randint(0, 6, (rows,))
        labels[: rows // 3] = -100
        return [torch.randn(rows, 6), labels]

    return drawn


def _normed(*shape: int) -> Callable[[], list[torch.Tensor]]:
    c = shape[1]
    return lambda: [
        torch.randn(shape), torch.randn(c), torch.randn(c), torch.randn(c), torch.rand(c) + 0.5,
    ]  # fmt: skip


def _routed(tokens: int, gated: int) -> Callable[[], list[torch.Tensor]]:
    return lambda: [
        torch.randn(tokens, 5), torch.randint(0, 4, (tokens, 2)), torch.rand(tokens, 2),
        torch.randn(4, 3 * gated, 5), torch.randn(4, 7, 3),
    ]  # fmt: skip


def _attending(rows: int, heads: int = 4) -> Callable[[], list[torch.Tensor]]:
    return lambda: [
        torch.randn(3, 4, rows, 6), torch.randn(3, heads, rows, 6), torch.randn(3, heads, rows, 6),
    ]  # fmt: skip


def _attention(*operands: torch.Tensor) -> torch.Tensor:
    shared = operands[0].shape[1] != operands[1].shape[1]
    return F.scaled_dot_product_attention(*operands, is_causal=True, enable_gqa=shared)


VOCABULARY = "vocab_parallel_embedding"
ENTROPY = "vocab_parallel_cross_entropy"
ROWS, RING = "sequence_parallel_attention", "ring_attention"
SPLIT_EXPERTS = (None, None, None, 0, 0)
CASES = {
    "embedding": Case(VOCABULARY, _embedding, _table(4, 3), (0, None), "sum"),
    "embedding of one": Case(VOCABULARY, _embedding, _table(), (0, None), "sum"),
    "embedding of none": Case(VOCABULARY, _embedding, _table(0, 3), (0, None), "sum"),
    "embedding with padding": Case(VOCABULARY, _embedding, _table(4, 3), (0, None), "sum", (5,)),
    "entropy": Case(ENTROPY, cross_entropy_sum, _labelled(9), (1, None), None),
    "entropy, smoothed": Case(
        ENTROPY, cross_entropy_sum, _labelled(9), (1, None), None, (None, -100, 0.1)
    ),
    "entropy of none": Case(ENTROPY, cross_entropy_sum, _labelled(0), (1, None), None),
    "entropy, one ignored": Case(
        ENTROPY, cross_entropy_sum, _labelled(9), (1, None), None, (None, 2, 0.0)
    ),
    **{
        f"batch norm {len(shape)}-d": Case(
            "sync_batch_norm", batch_norm, _normed(*shape), (0, None, None, None, None), 0,
            (0.1, 1e-5),
        )
        for shape in ((8, 6), (8, 6, 5), (8, 6, 4, 5), (8, 6, 3, 4, 2), (8, 6, 8, 1))
    },
    "experts": Case(
        "expert_parallel", routed_experts, _routed(9, 2), SPLIT_EXPERTS, "sum", ("silu",)
    ),
    "experts, no gates": Case(
        "expert_parallel", routed_experts, _routed(9, 1), SPLIT_EXPERTS, "sum", ("gelu",)
    ),
    "attention": Case(ROWS, _attention, _attending(8), (2, None, None), 2),
    "attention of odd rows": Case(ROWS, _attention, _attending(10, 2), (2, None, None), 2),
    "attention of single rows": Case(ROWS, _attention, _attending(2, 1), (2, None, None), 2),
    **{
        f"dispatch{name}": Case(
            "expert_dispatch", routed_experts, _routed(tokens, gated), (0,) * 5, 0, (activation,)
        )
        for name, tokens, gated, activation in (
            ("", 10, 2, "silu"), (", no gates", 10, 1, "gelu"), (" of none", 0, 1, "relu"),
        )
    },
    "ring": Case(RING, _attention, _attending(8), (2, 2, 2), 2),
    "ring of odd rows": Case(RING, _attention, _attending(10, 2), (2, 2, 2), 2),
    "ring of single rows": Case(RING, _attention, _attending(2, 1), (2, 2, 2), 2),
    "experts of none": Case(
        "expert_parallel", routed_experts, _routed(0, 1), SPLIT_EXPERTS, "sum", ("relu",)
    ),
}  # fmt: skip


def test_every_variant_has_a_case() -> None:
    """Those that a plan may name, and those that take an axis."""
    taking = {
        name
        for name in variants.__all__
        if "axis" in inspect.signature(getattr(variants, name)).parameters
    }
    assert taking == set(_TRAFFIC) == {case.variant for case in CASES.values()}


def _laid(value: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values, lying otherwise in memory; an expanded one is the same along its last dim."""
    if layout == "transposed" and value.dim() > 1:
        return value.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "sliced" and value.dim():
        return torch.stack([value, value], -1).flatten(-2)[..., ::2]
    if layout == "expanded" and value.dim() and value.shape[-1]:
        return value[..., :1].expand_as(value)
    if layout == "channels_last" and value.dim() > 2:
        return value.movedim(1, -1).contiguous().movedim(-1, 1)
    return value


def _fed(like: torch.Tensor, layout: str) -> torch.Tensor:
    """A gradient from behind; of a sum it is one number, stretched."""
    made = torch.randn(like.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    made = made.to(like.dtype)
    return made.new_ones(()).expand_as(made) if layout == "summed" else _laid(made, layout)


def _drawn(case: Case, dtype: str, layout: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    values = case.operands()
    kind = getattr(torch, dtype)
    return [
        _laid((v * 2).to(kind) if v.is_floating_point() else v, layout if i == 0 else "contiguous")
        for i, v in enumerate(values)
    ]


def _run(
    call: Callable[..., Any], case: Case, values: list[torch.Tensor], fed: Callable[..., Any]
) -> list[Any]:
    """Outputs and gradients of all that may have one; statistics of a batch norm have none."""
    still = 3 if case.variant == "sync_batch_norm" else len(values)
    leaves = [
        v.detach().requires_grad_(i < still and (v.is_floating_point() or v.is_complex()))
        for i, v in enumerate(values)
    ]
    made = call(*leaves, *case.rest)
    outputs = list(made) if isinstance(made, tuple) else [made]
    trained = [leaf for leaf in leaves if leaf.requires_grad]
    gradients = iter(torch.autograd.grad(outputs[0], trained, fed(outputs[0])) if trained else ())
    found = [next(gradients) if leaf.requires_grad else None for leaf in leaves]
    return [*(each.detach() for each in outputs), *found]


def _of_ranks(case: Case, values: list[torch.Tensor], layout: str) -> list[list[Any]]:
    def work(rank: int) -> list[Any]:
        mine = [
            v if dim is None else v.narrow(dim, rank * (n := v.shape[dim] // RANKS), n)
            for v, dim in zip(values, case.cut, strict=True)
        ]

        def fed(output: torch.Tensor) -> torch.Tensor:
            if not isinstance(case.made, int):
                return _fed(output, layout)
            size, whole = output.shape[case.made], list(output.shape)
            whole[case.made] *= RANKS
            return _fed(output.new_empty(whole), layout).narrow(case.made, rank * size, size)

        return _run(case.local, case, mine, fed)

    parts, _ = run_on_all(Mesh.of(RANKS), work)
    return parts


def _joined(case: Case, parts: list[list[Any]], outputs: int) -> list[Any]:
    """What ranks hold as one: shards joined, parts summed, equal ones once."""
    dims: list[int | str | None] = [case.made, *(None,) * (outputs - 1)]
    # The gradient of what all ranks read is the sum of theirs.
    dims += ["sum" if dim is None else dim for dim in case.cut]
    joined = []
    for dim, each in zip(dims, zip(*parts, strict=True), strict=True):
        if each[0] is None:
            joined.append(None)
        elif dim is None:
            assert torch.equal(each[0], each[1]), "ranks differ"
            joined.append(each[0])
        else:
            # No plan sums booleans over ranks: of them an embedding is split by its width alone.
            total = torch.cat(each, dim) if isinstance(dim, int) else sum(each)
            joined.append(total.to(each[0].dtype))
    return joined


def _difference(case: Case, dtype: str, layout: str, of_gradient: str) -> str | None:
    values = _drawn(case, dtype, layout)
    where = f"{dtype}, {layout}, gradient {of_gradient}"
    # Row-major: of two layouts that differ, a kernel of one process itself may sum wrong.
    plain = [v.clone(memory_format=torch.contiguous_format) for v in values]
    try:
        want = _run(case.whole, case, plain, lambda y: _fed(y, of_gradient).contiguous())
    except REFUSALS as refused:
        want = [refused]
    try:
        parts = _of_ranks(case, values, of_gradient)
    except REFUSALS as refused:
        return None if isinstance(want[0], Exception) else f"{where}: refused, {refused}"
    if isinstance(want[0], Exception):
        return f"{where}: not refused as the operator is, {want[0]}"
    got = _joined(case, parts, len(want) - len(values))
    for place, (a, b) in enumerate(zip(got, want, strict=True)):
        if a is None or b is None:
            if a is not b:
                return f"{where}: {place} has a gradient in one alone"
        elif (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"{where}: {place} is {a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}"
        elif a.dtype == torch.bool:
            if not torch.equal(a, b):
                return f"{where}: {place} has other values"
        elif a.numel():
            # Parts that cancel each other were each rounded by themselves.
            largest = max(float(each[place].abs().max()) for each in (*parts, want))
            limit = TOLERANCE.get(dtype, 1e-9) * max(1.0, largest)
            if not float((a - b).abs().max()) <= limit:
                return f"{where}: {place} differs by {float((a - b).abs().max()):.1e}"
    return None


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_is_the_operator(case: Case) -> None:
    """All dtypes in one layout, all layouts in one dtype, all layouts of gradients in one."""
    tried = [
        *((dtype, "transposed", "summed") for dtype in DTYPES),
        *(("float64", layout, "contiguous") for layout in LAYOUTS),
        *(("float64", "contiguous", layout) for layout in FED),
    ]
    assert not [line for each in tried if (line := _difference(case, *each))]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_is_the_operator_in_all_dtypes_and_layouts(case: Case, dtype: str) -> None:
    tried = [(dtype, layout, fed) for layout in LAYOUTS for fed in FED]
    assert not [line for each in tried if (line := _difference(case, *each))]


@pytest.mark.parametrize("kind", ["uint8", "int8", "int16", "int32", "int64", "float64", "bool"])
@pytest.mark.parametrize("name", ["embedding", "entropy", "experts"])
def test_numbers_in_all_dtypes(name: str, kind: str) -> None:
    """Ids, labels and choices of every dtype; in few bits what is below a rank's first wraps around."""
    case, dtype = CASES[name], getattr(torch, kind)
    torch.manual_seed(0)
    values = case.operands()
    values[1] = values[1].clamp(min=0).to(dtype)

    def outcome(run: Callable[[], list[Any]]) -> list[Any] | None:
        try:
            return run()
        except REFUSALS:
            return None

    want = outcome(lambda: _run(case.whole, case, values, torch.ones_like))
    parts = outcome(lambda: _of_ranks(case, values, "summed"))  # type: ignore[arg-type]
    assert (want is None) == (parts is None)
    if want is not None and parts is not None:
        got = _joined(case, parts, len(want) - len(values))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_classes_beyond_eight_bits() -> None:
    """Class 10 is not the second rank's class 66, which is 10 - 200 in eight bits."""
    logits, target = torch.randn(5, 400).double(), torch.tensor([0, 10, 60, 199, 255]).byte()
    case = Case(ENTROPY, cross_entropy_sum, lambda: [logits, target], (1, None), None)
    parts = _of_ranks(case, case.operands(), "summed")
    want = _run(case.whole, case, case.operands(), torch.ones_like)
    torch.testing.assert_close(_joined(case, parts, 1), want, rtol=1e-9, atol=1e-9)


def test_booleans_are_not_summed() -> None:
    """A table of booleans has no candidate whose rows are split: ranks' parts could not be added."""
    graph, node = build(call("embedding", mask(12, 18), ids(6, 9)))
    options = candidates(graph, Mesh.of(2), local_inputs=True)[node.name]
    assert not [option for option in options if option.variant]


@pytest.mark.parametrize("weighted", [False, True])
def test_eight_bits_ignore_no_class(weighted: bool) -> None:
    """Of uint8, -100 is 156; a target of 156 counts as it does in `F.cross_entropy`."""
    target, weight = torch.tensor([0, 156, 199]).byte(), torch.rand(256) + 0.5
    got = count_valid(target, -100, weight if weighted else None)
    torch.testing.assert_close(got, weight[target.long()].sum() if weighted else torch.tensor(3))


@pytest.mark.parametrize("ignored", [255, -100, 3])
def test_what_is_ignored_may_be_no_class(ignored: int) -> None:
    """Its weight is not read: there is none, or it is infinite."""
    target = torch.tensor([0, ignored, 2, ignored])
    weight = torch.tensor([1.0, 2.0, 4.0, math.inf])
    assert count_valid(target, ignored, weight) == 5.0
