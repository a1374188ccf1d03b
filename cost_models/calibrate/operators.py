"""Sample calls of common operators at several sizes, with forward and backward as separate actions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from cost_models.measured.cold import copies_of

Call = Callable[..., torch.Tensor]
Inputs = Callable[[], tuple[torch.Tensor, ...]]
Action = Callable[[], object]

WIDTH = 256
HEADS, HEAD = 4, 48
ITEMSIZE = {"float32": 4, "float64": 8, "bfloat16": 2}


@dataclass(frozen=True)
class Amount:
    """An operator's work at one size; `nbytes` are read and written by the forward."""

    operator: str
    dtype: str
    nbytes: int
    flops: float
    backward_flops: float


@dataclass(frozen=True)
class Sample:
    """A callable that performs an `Amount` of work."""

    amount: Amount
    call: Call
    inputs: Inputs

    @property
    def copies(self) -> int:
        """Number of calls per action, each on tensors of its own; they share the start of a backward."""
        return copies_of(self.amount.nbytes, "cpu")

    def actions(self) -> tuple[Action, Action]:
        """Return two actions: the forwards of all copies, and their backwards.

        Results stay alive until the next ones are made, as in a step, where the backward needs them.
        """
        every = [self.inputs() for _ in range(self.copies)]
        results = [self.call(*inputs) for inputs in every]
        seeds = [torch.ones_like(result) for result in results]
        wanted = [tensor for inputs in every for tensor in inputs if tensor.requires_grad]
        held: list[object] = []

        def forward() -> None:
            held[:] = [self.call(*inputs) for inputs in every]

        return (
            forward,
            lambda: torch.autograd.grad(results, wanted, seeds, retain_graph=True),
        )


def samples(matrices: Sequence[int], nbytes: Sequence[int]) -> Iterator[Sample]:
    """Yield products of n x n matrices, and other operators on float32 tensors of `nbytes`."""
    for dtype in ITEMSIZE:
        for n in matrices:
            yield _product(dtype, n)
    for size in nbytes:
        rows = max(1, size // 4 // WIDTH)
        yield _attention(rows)
        yield _attention(rows, biased=True)
        yield _loss(rows)
        yield _embedding(rows)
        yield from (_pointwise(name, call, rows) for name, call in _OF_ONE.items())
        yield from (_pair(name, call, rows) for name, call in _OF_TWO.items())
        yield from (_normalised(name, call, rows) for name, call in _NORMS.items())


def _product(dtype: str, n: int) -> Sample:
    kind = getattr(torch, dtype)

    def inputs() -> tuple[torch.Tensor, ...]:
        return _wanted((n, n), kind), _wanted((n, n), kind)

    flops = 2.0 * n**3
    amount = Amount("linear", dtype, 3 * n * n * ITEMSIZE[dtype], flops, 2 * flops)
    return Sample(amount, F.linear, inputs)


def _attention(rows: int, biased: bool = False) -> Sample:
    """Return attention on `rows` rows: sequences of 16 to 256 positions, the rest as batch."""
    length = min(256, max(16, rows // 4))
    batch = max(1, rows * WIDTH // (HEADS * length * HEAD))
    shape, bias = (batch, HEADS, length, HEAD), (HEADS, length, length) if biased else ()
    flops = 4.0 * math.prod(shape) * length

    def inputs() -> tuple[torch.Tensor, ...]:
        biases = [_wanted(bias)] if biased else []
        return _wanted(shape), _wanted(shape), _wanted(shape), *biases

    def call(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, bias, is_causal=bias is None)

    name = "biased_attention" if biased else "scaled_dot_product_attention"
    nbytes = 4 * (4 * math.prod(shape) + biased * math.prod(bias))
    return Sample(Amount(name, "float32", nbytes, flops, 2.5 * flops), call, inputs)


def _loss(rows: int) -> Sample:
    def inputs() -> tuple[torch.Tensor, ...]:
        return _wanted((rows, WIDTH)), torch.randint(0, WIDTH, (rows,))

    def call(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, labels, reduction="sum")

    amount = Amount("cross_entropy", "float32", 4 * rows * (WIDTH + 2), 1.0, 1.0)
    return Sample(amount, call, inputs)


def _embedding(rows: int) -> Sample:
    """Return an embedding whose table has as many rows as are looked up."""
    made = rows * WIDTH

    def inputs() -> tuple[torch.Tensor, ...]:
        return _wanted((rows, WIDTH)), torch.randint(0, rows, (rows,))

    def call(table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return F.embedding(places, table)

    amount = Amount("embedding", "float32", 8 * made + 8 * rows, made, made)
    return Sample(amount, call, inputs)


def _pointwise(name: str, call: Call, rows: int) -> Sample:
    made = rows * WIDTH
    written = 1 if name == "mean" else WIDTH
    flops = float(rows * written)
    amount = Amount(name, "float32", 4 * (made + rows * written), flops, flops)
    return Sample(amount, call, lambda: (_wanted((rows, WIDTH)),))


def _pair(name: str, call: Call, rows: int) -> Sample:
    made = rows * WIDTH * (2 if name == "cat" else 1)

    def inputs() -> tuple[torch.Tensor, ...]:
        return _wanted((rows, WIDTH)), _wanted((rows, WIDTH))

    amount = Amount(name, "float32", 4 * (2 * rows * WIDTH + made), made, 2.0 * made)
    return Sample(amount, call, inputs)


def _normalised(name: str, call: Call, rows: int) -> Sample:
    made, weights = rows * WIDTH, 2 if name == "layer_norm" else 1

    def inputs() -> tuple[torch.Tensor, ...]:
        return _wanted((rows, WIDTH)), *(_wanted((WIDTH,)) for _ in range(weights))

    nbytes = 4 * (2 * made + weights * WIDTH)
    amount = Amount(name, "float32", nbytes, made, made * (1.0 + weights))
    return Sample(amount, call, inputs)


def _wanted(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.rand(shape) + 0.1
    return values.to(dtype).requires_grad_()


def _cat(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.cat([one, other], -1)


_OF_ONE: Mapping[str, Call] = {
    "gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "exp": torch.exp,
    "log": torch.log, "cos": torch.cos, "rsqrt": torch.rsqrt, "pow": lambda x: x**3,
    "softmax": lambda x: F.softmax(x, -1), "mean": lambda x: x.mean(-1), "dropout": F.dropout,
}  # fmt: skip
_OF_TWO: Mapping[str, Call] = {"add": torch.add, "mul": torch.mul, "cat": _cat}
_NORMS: Mapping[str, Call] = {
    "layer_norm": lambda x, weight, bias: F.layer_norm(x, (WIDTH,), weight, bias),
    "rms_norm": lambda x, weight: F.rms_norm(x, (WIDTH,), weight),
}
