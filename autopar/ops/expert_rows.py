"""Products of a mixture's experts with rows that are ordered by expert, and their gradients.

`autopar.ops.experts` applies them to the rows of the tokens at hand, `autopar.runtime.dispatch` to rows
that have arrived from other ranks.  Nothing here is recorded by autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F

_aten: Any = torch.ops.aten
Activation = Callable[[torch.Tensor], torch.Tensor]
Derivative = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
ACTIVATIONS: dict[str, tuple[Activation, Derivative]] = {
    "silu": (F.silu, _aten.silu_backward),
    "relu": (F.relu, lambda gradient, x: gradient * (x > 0)),
    "relu_squared": (lambda x: F.relu(x).square(), lambda gradient, x: 2 * gradient * F.relu(x)),
    "gelu": (F.gelu, _aten.gelu_backward),
    "gelu_tanh": (
        lambda x: F.gelu(x, approximate="tanh"),
        lambda gradient, x: _aten.gelu_backward(gradient, x, approximate="tanh"),
    ),
}
"""By name: the function, and its gradient as a function of the incoming gradient and the input."""
CLAMPED_SWIGLU = "clamped_swiglu"
"""The gate of gpt-oss (OpenAI 2025): (u + 1) g sigmoid(alpha g), of g <= limit and -limit <= u <= limit.

Both are clamped.  The constants are (alpha, limit).  Columns of g and u alternate.
"""
INTERLEAVED = frozenset([CLAMPED_SWIGLU])
"""Activations that read gates and what they multiply from neighbouring rows of the first matrix."""
Bounds = tuple[int, ...]
"""An expert's rows lie between two neighbours of these."""


@dataclass(frozen=True)
class Gradients:
    """Gradients of a mixture's rows and weights; of biases, None without them.

    `rows` is [rows, in], `factors` is [rows]: that of the weight of each row.
    """

    rows: torch.Tensor
    factors: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    up_bias: torch.Tensor | None
    down_bias: torch.Tensor | None


@dataclass(frozen=True)
class Experts:
    """The matrices of a mixture's experts.

    `down` is [experts, out, inner]. `up` is [experts, inner, in], or [experts, 2 * inner, in] with
    gates, which come first unless the activation is `INTERLEAVED`. Biases are [experts, up's rows] and
    [experts, out]. `constants` are those of the activation.
    """

    up: torch.Tensor
    down: torch.Tensor
    activation: str
    up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None
    constants: tuple[float, ...] = ()

    def forward(self, rows: torch.Tensor, bounds: Bounds) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the experts' results [rows, out], and the rows after the first product.

        The caller should not hold `rows` [rows, in]: they are freed after the first product.
        """
        before = _products(rows, self.up, bounds, self.up_bias)
        del rows
        inner = self._inner(before).rows()
        return _products(inner, self.down, bounds, self.down_bias), before

    def backward(
        self,
        rows: Callable[[], torch.Tensor],
        before: torch.Tensor,
        bounds: Bounds,
        behind: torch.Tensor,
        factors: torch.Tensor,
    ) -> Gradients:
        """Return all gradients from those of the results times `factors` [rows, 1].

        Rows that are not needed any more are freed: they are most of the memory. The caller should
        not hold `behind` [rows, out], which is overwritten. `rows` returns the input [rows, in].
        """
        inner = self._inner(before)
        inside = inner.rows()
        of_inner = _products(behind, self.down.mT, bounds)
        of_factors = (of_inner * inside).sum(1)
        if self.down_bias is not None:
            of_factors += _products(behind, self.down_bias[:, None], bounds)[:, 0]
        of_down = _outer(behind.mul_(factors), inside, bounds)
        of_down_bias = None if self.down_bias is None else _sums(behind, bounds)
        del behind, inside
        of_before = inner.backward(of_inner.mul_(factors))
        del inner, of_inner
        of_up = _outer(of_before, rows(), bounds)
        of_up_bias = None if self.up_bias is None else _sums(of_before, bounds)
        of_rows = _products(of_before, self.up.mT, bounds)
        return Gradients(of_rows, of_factors, of_up, of_down, of_up_bias, of_down_bias)

    def _inner(self, before: torch.Tensor) -> _Inner | _ClampedSwiglu:
        if self.activation == CLAMPED_SWIGLU:
            return _ClampedSwiglu(before, *self.constants)
        return _Inner(before, self.down.shape[2], self.activation)


def _products(
    rows: torch.Tensor, matrices: torch.Tensor, bounds: Bounds, biases: torch.Tensor | None = None
) -> torch.Tensor:
    """Return every expert's rows times its matrix [out, in], transposed, plus its bias."""
    made = rows.new_empty(len(rows), matrices.shape[1])
    for place, (first, end) in enumerate(pairwise(bounds)):
        matrix, into = matrices[place].T, made[first:end]
        if biases is None:
            torch.mm(rows[first:end], matrix, out=into)
        else:
            torch.addmm(biases[place], rows[first:end], matrix, out=into)
    return made


def _outer(rows: torch.Tensor, others: torch.Tensor, bounds: Bounds) -> torch.Tensor:
    """Return rows.T @ others of each expert; zero without rows.

    The shape is [experts, rows' width, others' width].
    """
    made = rows.new_empty(len(bounds) - 1, rows.shape[1], others.shape[1])
    for matrix, (first, end) in zip(made, pairwise(bounds), strict=True):
        torch.mm(rows[first:end].T, others[first:end], out=matrix)
    return made


def _sums(rows: torch.Tensor, bounds: Bounds) -> torch.Tensor:
    """Return the sum of each expert's rows [experts, width]."""
    made = rows.new_empty(len(bounds) - 1, rows.shape[1])
    for place, (first, end) in enumerate(pairwise(bounds)):
        torch.sum(rows[first:end], 0, out=made[place])
    return made


class _Inner:
    """The activation, applied to the rows after the first product; gates are in their first half."""

    def __init__(self, before: torch.Tensor, width: int, activation: str) -> None:
        self.gate, self.other = before, None
        function, self.derivative = ACTIVATIONS[activation]
        if before.shape[1] != width:
            self.gate, self.other = before.chunk(2, 1)
        self.opened = function(self.gate)

    def rows(self) -> torch.Tensor:
        """Return the input of the second product."""
        return self.opened if self.other is None else self.opened * self.other

    def backward(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the rows after the first product."""
        if self.other is None:
            return self.derivative(gradient, self.gate)
        of_gate = self.derivative(gradient * self.other, self.gate)
        return torch.cat([of_gate, gradient * self.opened], 1)


class _ClampedSwiglu:
    """`CLAMPED_SWIGLU`, applied to the rows after the first product."""

    def __init__(self, before: torch.Tensor, alpha: float, limit: float) -> None:
        self.before, self.alpha, self.limit = before, alpha, limit
        self.gate = before[:, ::2].clamp(max=limit)
        self.other = before[:, 1::2].clamp(-limit, limit) + 1
        self.share = torch.sigmoid(alpha * self.gate)

    def rows(self) -> torch.Tensor:
        """Return the input of the second product."""
        return self.other * (self.gate * self.share)

    def backward(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the rows after the first product; it is zero where they are clamped."""
        slope = self.share * (1 + self.alpha * self.gate * (1 - self.share))
        is_gate_free = self.before[:, ::2] <= self.limit
        is_other_free = self.before[:, 1::2].abs() <= self.limit
        of_gate = gradient * self.other * slope * is_gate_free
        of_other = gradient * (self.gate * self.share) * is_other_free
        return torch.stack([of_gate, of_other], 2).flatten(1)
