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
    dtype = torch.promote_types(down.dtype, weights.dtype)
    out = x.new_zeros(x.shape[0], down.shape[1], dtype=dtype)
    routes, flat = _Routes(chosen, up.shape[0]), weights.flatten()
    before = up.new_empty(routes.count, up.shape[1])
    for expert, here, token, choice in routes:
        torch.mm(x[token].to(up.dtype), up[expert].T, out=before[here])
        made = _Inner(before[here], down.shape[2], activation).rows @ down[expert].T
        out.index_add_(0, token, (made * flat[choice, None]).to(out.dtype))
    return out.to(x.dtype), before


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
    of_x, of_weights = torch.zeros_like(x), torch.zeros_like(weights)
    of_up, of_down = torch.empty_like(up), torch.empty_like(down)
    flat, flat_gradient = weights.flatten(), of_weights.view(-1)
    idle = set(range(up.shape[0]))
    for expert, here, token, choice in _Routes(chosen, up.shape[0]):
        idle.remove(expert)
        inner = _Inner(before[here], down.shape[2], activation)
        behind, factor = gradient[token].to(up.dtype), flat[choice, None].to(up.dtype)
        of_one = behind @ down[expert]
        flat_gradient[choice] = (of_one * inner.rows).sum(1).to(of_weights.dtype)
        of_before = inner.backward(of_one.mul_(factor))
        torch.mm(behind.T, inner.rows.mul_(factor), out=of_down[expert])
        torch.mm(of_before.T, x[token].to(up.dtype), out=of_up[expert])
        of_x.index_add_(0, token, (of_before @ up[expert]).to(x.dtype))
    for expert in idle:
        of_up[expert], of_down[expert] = 0, 0
    return of_x, of_weights, of_up, of_down


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
    """What one expert's activation makes of the rows behind its first product."""

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
    """Choices in the order of their experts."""

    def __init__(self, chosen: torch.Tensor, experts: int) -> None:
        flat = chosen.flatten()
        self.choices = chosen.shape[1]
        self.order = flat.argsort(stable=True)
        ends = torch.arange(experts + 1, device=flat.device)
        # One wait for the device, where a loop over `nonzero` would be one per expert.
        self.bounds: list[int] = torch.searchsorted(flat[self.order], ends).tolist()

    @property
    def count(self) -> int:
        """How many choices are an expert's number."""
        return self.bounds[-1] - self.bounds[0]

    def __iter__(self) -> Iterator[tuple[int, slice, torch.Tensor, torch.Tensor]]:
        """Per expert that anybody chose: its number, its rows among all, their tokens and choices."""
        for expert, (first, end) in enumerate(pairwise(self.bounds)):
            choice = self.order[first:end]
            if len(choice):
                here = slice(first - self.bounds[0], end - self.bounds[0])
                yield expert, here, choice // self.choices, choice
