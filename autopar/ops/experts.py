"""The experts of a mixture of experts as one operator, so that experts can be split over ranks.

Every token is routed to the experts that it chose, without a capacity limit. An expert is two
products with an activation between them. Written as several operators, this would need all rows of
a sum that ranks hold as partial sums. As one operator, each rank computes the rows of its own
experts, and the results add up.

Autograd saves the operands and the rows after the first product, ordered by expert. The number of
rows is known only at run time: if experts are split, fake tensors have a row for every choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    "gelu": (F.gelu, _aten.gelu_backward),
    "gelu_tanh": (
        lambda x: F.gelu(x, approximate="tanh"),
        lambda gradient, x: _aten.gelu_backward(gradient, x, approximate="tanh"),
    ),
}
"""By name: the function, and its gradient as a function of the incoming gradient and the input."""


_library = torch.library.Library("autopar", "FRAGMENT")
_library.define(
    "routed_experts(Tensor x, Tensor chosen, Tensor weights, Tensor up, Tensor down, str activation)"
    " -> Tensor"
)


def routed_experts(
    x: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    activation: str,
) -> torch.Tensor:
    """Return the sum over each token's experts [tokens, out].

    A choice that is no expert's number adds nothing. x is [tokens, in], chosen and weights are
    [tokens, choices], and down is [experts, out, inner]. up is [experts, inner, in], or
    [experts, 2 * inner, in] with the gates first.
    """
    made: torch.Tensor = torch.ops.autopar.routed_experts(x, chosen, weights, up, down, activation)
    return made


@torch.library.custom_op("autopar::routed_experts_forward", mutates_args=())
def _mixture(
    x: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    activation: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sums, and the rows [rows, up's rows] after the first product, ordered by expert."""
    return _forward(_Routes.of(chosen, up.shape[0]), x, weights, up, down, activation)


_mixture.register_fake(
    lambda x, chosen, weights, up, down, _: (
        x.new_empty(x.shape[0], down.shape[1]),
        up.new_empty(chosen.numel(), up.shape[1]),
    )
)


def _forward(
    routes: _Routes,
    x: torch.Tensor,
    weights: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    activation: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    before = routes.products(x[routes.tokens].to(up.dtype), up)
    inner = _Inner(before, down.shape[2], activation).rows()
    return routes.summed(routes.products(inner, down), weights).to(x.dtype), before


@torch.library.custom_op("autopar::routed_experts_backward", mutates_args=())
def _gradients(
    gradient: torch.Tensor,
    x: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    before: torch.Tensor,
    activation: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of x, weights, up and down."""
    routes = _Routes.of(chosen, up.shape[0])
    return _backward(routes, gradient, x, weights, up, down, before, activation)


_gradients.register_fake(
    lambda gradient, x, chosen, weights, up, down, before, _: tuple(
        torch.empty_like(value) for value in (x, weights, up, down)
    )
)


def _backward(
    routes: _Routes,
    gradient: torch.Tensor,
    x: torch.Tensor,
    weights: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    before: torch.Tensor,
    activation: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients. Rows that are not needed any more are freed: they are most of the memory."""
    inner = _Inner(before, down.shape[2], activation)
    rows, behind = inner.rows(), gradient[routes.tokens].to(up.dtype)
    of_inner = routes.products(behind, down.mT)
    of_weights = weights.new_zeros(weights.shape)
    of_weights.view(-1)[routes.choices] = (of_inner * rows).sum(1).to(weights.dtype)
    factor = weights.flatten()[routes.choices, None].to(up.dtype)
    of_down = routes.outer(behind.mul_(factor), rows)
    del behind, rows
    of_before = inner.backward(of_inner.mul_(factor))
    del inner, of_inner
    of_up = routes.outer(of_before, x[routes.tokens].to(up.dtype))
    of_x = routes.summed(routes.products(of_before, up.mT)).to(x.dtype)
    return of_x, of_weights, of_up, of_down


def _evenly(
    run: Callable[..., Any], chosen: int, matrices: int
) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return an implementation that takes all operands and gives every expert as many rows."""

    def shown(*operands: Any) -> tuple[torch.Tensor, ...]:
        routes = _Routes.evenly(operands[chosen], operands[matrices].shape[0])
        result: tuple[torch.Tensor, ...] = run(routes, *operands[:chosen], *operands[chosen + 1 :])
        return result

    return shown


SHOWN: Mapping[Any, Callable[..., tuple[torch.Tensor, ...]]] = {
    torch.ops.autopar.routed_experts_forward.default: _evenly(_forward, chosen=1, matrices=3),
    torch.ops.autopar.routed_experts_backward.default: _evenly(_backward, chosen=2, matrices=4),
}
"""Implementations of the operators' kernels for measuring memory, which fake tensors do not show.

The memory that they need does not depend on the routing.
"""


class _Experts(torch.autograd.Function):
    """Saves tensors for the backward that are not results of the operator."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        made: torch.Tensor
        made, before = _mixture(*inputs)
        *tensors, ctx.activation = inputs
        ctx.save_for_backward(*tensors, before)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        of_x, of_weights, of_up, of_down = _gradients(gradient, *ctx.saved_tensors, ctx.activation)
        return of_x, None, of_weights, of_up, of_down, None


_library.impl("routed_experts", lambda *inputs: _mixture(*inputs)[0], "CompositeExplicitAutograd")
_library.impl("routed_experts", _Experts.apply, "Autograd")
torch.library.register_fake(
    "autopar::routed_experts",
    lambda x, chosen, weights, up, down, _: x.new_empty(x.shape[0], down.shape[1]),
    lib=_library,
)


class _Inner:
    """The activation, applied to the rows after the first product."""

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


@dataclass(frozen=True)
class _Routes:
    """The choices, each of which is a row, sorted by expert; choices of no expert are left out.

    `shape` is [tokens, choices]; an expert's rows lie between two neighbours of `bounds`.
    """

    shape: torch.Size
    bounds: tuple[int, ...]
    choices: torch.Tensor
    tokens: torch.Tensor

    @staticmethod
    def of(chosen: torch.Tensor, experts: int) -> _Routes:
        """Route each token to the experts that it chose."""
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        numbers = torch.arange(experts + 1, device=flat.device)
        # One synchronisation with the device. A loop over `nonzero` would need one per expert.
        first, *ends = torch.searchsorted(flat[order], numbers).tolist()
        choices = order[first : ends[-1]]
        bounds = (0, *(end - first for end in ends))
        return _Routes(chosen.shape, bounds, choices, choices // chosen.shape[1])

    @staticmethod
    def evenly(chosen: torch.Tensor, experts: int) -> _Routes:
        """Route equally many choices to every expert, whatever was chosen."""
        choices = chosen.flatten().argsort()
        bounds = tuple(len(choices) * number // experts for number in range(experts + 1))
        return _Routes(chosen.shape, bounds, choices, choices // chosen.shape[1])

    def products(self, rows: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
        """Return every expert's rows times its matrix [out, in], transposed."""
        made = rows.new_empty(len(rows), matrices.shape[1])
        for matrix, (first, end) in zip(matrices.mT, pairwise(self.bounds), strict=True):
            torch.mm(rows[first:end], matrix, out=made[first:end])
        return made

    def outer(self, rows: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """Return rows.T @ others of each expert; zero without rows.

        The shape is [experts, rows' width, others' width].
        """
        made = rows.new_empty(len(self.bounds) - 1, rows.shape[1], others.shape[1])
        for matrix, (first, end) in zip(made, pairwise(self.bounds), strict=True):
            torch.mm(rows[first:end].T, others[first:end], out=matrix)
        return made

    def summed(self, rows: torch.Tensor, factors: torch.Tensor | None = None) -> torch.Tensor:
        """Return the sum of each token's rows [tokens, width], times the factors [tokens, choices]."""
        tokens, width = self.shape
        order = self.choices.argsort()
        choices = self.choices[order]
        firsts = torch.searchsorted(choices, width * torch.arange(tokens, device=choices.device))
        if factors is not None:
            dtype = torch.promote_types(rows.dtype, factors.dtype)
            rows, factors = rows.to(dtype), factors.flatten()[choices].to(dtype)
        return F.embedding_bag(order, rows, firsts, mode="sum", per_sample_weights=factors)
