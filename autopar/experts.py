"""The networks of a mixture of experts as one operator, so that experts may be split over ranks.

Every token goes to the experts that it chose, as many as come; between its two products an expert's
rows pass through an activation.  As several operators that would need all rows of a sum that ranks
hold in parts; as one, each rank does the rows of its own experts, and the results add up.

Autograd keeps the operands and the rows behind the first product, expert after expert.  How many rows
come is known when they have come: where experts are split, fake tensors stand for all choices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
"""By name: the function, and its gradient given the one behind it and what it read."""


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
    """Sums over each token's experts [tokens, out]; a choice that is no expert's number adds nothing.

    x [tokens, in], chosen and weights [tokens, choices], down [experts, out, inner], and up
    [experts, inner, in], or [experts, 2 * inner, in] with the gates in front.
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
    """The sums, and the rows [rows, up's rows] behind the first product, expert after expert."""
    routes = _Routes(chosen, up.shape[0])
    rows = x[routes.tokens].to(up.dtype)
    before = routes.new_rows(up.shape[1], rows)
    for expert, here in routes:
        torch.mm(rows[here], up[expert].T, out=before[here])
    inner = _Inner(before, down.shape[2], activation).rows
    made = routes.new_rows(down.shape[1], inner)
    for expert, here in routes:
        torch.mm(inner[here], down[expert].T, out=made[here])
    return routes.summed(made, weights).to(x.dtype), before


_mixture.register_fake(
    lambda x, chosen, weights, up, down, _: (
        x.new_empty(x.shape[0], down.shape[1]),
        up.new_empty(chosen.numel(), up.shape[1]),
    )
)


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
    """Gradients of x, weights, up and down; those of matrices are written where they belong."""
    routes = _Routes(chosen, up.shape[0])
    behind = gradient[routes.tokens].to(up.dtype)
    factor = weights.flatten()[routes.choices, None].to(up.dtype)
    inner = _Inner(before, down.shape[2], activation)
    of_inner, of_down = routes.new_rows(down.shape[2], behind), torch.empty_like(down)
    for expert, here in routes:
        torch.mm(behind[here], down[expert], out=of_inner[here])
    of_weights = torch.zeros_like(weights)
    of_weights.view(-1)[routes.choices] = (of_inner * inner.rows).sum(1).to(weights.dtype)
    behind.mul_(factor)
    for expert, here in routes:
        torch.mm(behind[here].T, inner.rows[here], out=of_down[expert])
    of_before = inner.backward(of_inner.mul_(factor))
    rows, of_up = x[routes.tokens].to(up.dtype), torch.empty_like(up)
    of_rows = routes.new_rows(x.shape[1], of_before)
    for expert, here in routes:
        torch.mm(of_before[here].T, rows[here], out=of_up[expert])
        torch.mm(of_before[here], up[expert], out=of_rows[here])
    return routes.summed(of_rows).to(x.dtype), of_weights, of_up, of_down


_gradients.register_fake(
    lambda gradient, x, chosen, weights, up, down, before, _: tuple(
        torch.empty_like(value) for value in (x, weights, up, down)
    )
)


class _Experts(torch.autograd.Function):
    """Keeps what the operator's results do not show."""

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
    """What the activation makes of the rows behind the first product."""

    def __init__(self, before: torch.Tensor, width: int, activation: str) -> None:
        self.gate, self.other = before, None
        function, self.derivative = ACTIVATIONS[activation]
        if before.shape[1] != width:
            self.gate, self.other = before.chunk(2, 1)
        self.opened = function(self.gate)
        self.rows = self.opened if self.other is None else self.opened * self.other

    def backward(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of the rows behind the first product."""
        if self.other is None:
            return self.derivative(gradient, self.gate)
        of_gate = self.derivative(gradient * self.other, self.gate)
        return torch.cat([of_gate, gradient * self.opened], 1)


class _Routes:
    """Choices in the order of their experts, each of which is a row; those of nobody are left out."""

    def __init__(self, chosen: torch.Tensor, experts: int) -> None:
        self._chosen = chosen.shape
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        numbers = torch.arange(experts + 1, device=flat.device)
        # One wait for the device, where a loop over `nonzero` would be one per expert.
        first, *ends = torch.searchsorted(flat[order], numbers).tolist()
        self._bounds = [0, *(end - first for end in ends)]
        self.choices = order[first : first + self._bounds[-1]]
        self.tokens = self.choices // chosen.shape[1]

    def __iter__(self) -> Iterator[tuple[int, slice]]:
        """Every expert and its rows: a product of none is zero."""
        for expert, (first, end) in enumerate(pairwise(self._bounds)):
            yield expert, slice(first, end)

    def new_rows(self, width: int, like: torch.Tensor) -> torch.Tensor:
        """To be filled."""
        return like.new_empty(len(self.choices), width)

    def summed(self, rows: torch.Tensor, factors: torch.Tensor | None = None) -> torch.Tensor:
        """Each token's rows [tokens, width], times the factors [tokens, choices] of its choices."""
        tokens, width = self._chosen
        order = self.choices.argsort()
        choices = self.choices[order]
        firsts = torch.searchsorted(choices, width * torch.arange(tokens, device=choices.device))
        if factors is not None:
            dtype = torch.promote_types(rows.dtype, factors.dtype)
            rows, factors = rows.to(dtype), factors.flatten()[choices].to(dtype)
        return F.embedding_bag(order, rows, firsts, mode="sum", per_sample_weights=factors)
