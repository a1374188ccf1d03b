"""The networks of a mixture of experts as one operator, so that experts may be split over ranks.

Every token goes to the experts that it chose, as many as come; between its two products an expert's
rows pass through an activation.  As several operators that would need all rows of a sum that ranks
hold in parts; as one, each rank does the rows of its own experts, and the results add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


@torch.library.custom_op("autopar::routed_experts", mutates_args=())
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
    out = x.new_zeros(
        x.shape[0], down.shape[1], dtype=torch.promote_types(down.dtype, weights.dtype)
    )
    flat = weights.flatten()
    for expert, token, choice in _routes(chosen, up.shape[0]):
        made = _Rows(x[token].to(up.dtype), up[expert], down[expert], activation).made
        out.index_add_(0, token, (made * flat[choice, None]).to(out.dtype))
    return out.to(x.dtype)


@routed_experts.register_fake
def _(
    x: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    activation: str,
) -> torch.Tensor:
    return x.new_empty(x.shape[0], down.shape[1])


@torch.library.custom_op("autopar::routed_experts_backward", mutates_args=())
def _gradients(
    gradient: torch.Tensor,
    x: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    activation: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of x, weights, up and down; the first product is computed again."""
    of_x, of_weights = torch.zeros_like(x), torch.zeros_like(weights)
    of_up, of_down = torch.empty_like(up), torch.empty_like(down)
    flat, flat_gradient = weights.flatten(), of_weights.view(-1)
    idle = set(range(up.shape[0]))
    for expert, token, choice in _routes(chosen, up.shape[0]):
        idle.remove(expert)
        rows = _Rows(x[token].to(up.dtype), up[expert], down[expert], activation)
        behind, factor = gradient[token].to(up.dtype), flat[choice, None].to(up.dtype)
        of_rows, of_factor = rows.backward(behind, factor, of_up[expert], of_down[expert])
        flat_gradient[choice] = of_factor.to(of_weights.dtype)
        of_x.index_add_(0, token, of_rows.to(x.dtype))
    for expert in idle:
        of_up[expert], of_down[expert] = 0, 0
    return of_x, of_weights, of_up, of_down


@_gradients.register_fake
def _(
    gradient: torch.Tensor,
    x: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    activation: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    of_x, of_weights, of_up, of_down = (torch.empty_like(value) for value in (x, weights, up, down))
    return of_x, of_weights, of_up, of_down


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    *tensors, ctx.activation = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    of_x, of_weights, of_up, of_down = _gradients(gradient, *ctx.saved_tensors, ctx.activation)
    return of_x, None, of_weights, of_up, of_down, None


routed_experts.register_autograd(_backward, setup_context=_keep)


class _Rows:
    """The rows of one expert on their way through its network."""

    def __init__(
        self, rows: torch.Tensor, up: torch.Tensor, down: torch.Tensor, activation: str
    ) -> None:
        self.rows, self.up, self.down = rows, up, down
        self.other: torch.Tensor | None
        self.function, self.derivative = ACTIVATIONS[activation]
        before = rows @ up.T
        gated = up.shape[0] != down.shape[1]
        self.gate, self.other = before, None
        if gated:
            self.gate, self.other = before.chunk(2, 1)
        inner = self.function(self.gate)
        self.inner = inner if self.other is None else inner * self.other

    @property
    def made(self) -> torch.Tensor:
        """What comes out."""
        return self.inner @ self.down.T

    def backward(
        self,
        behind: torch.Tensor,
        factor: torch.Tensor,
        of_up: torch.Tensor,
        of_down: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of the rows, and of the factors by which what came out was multiplied; `behind` is
        the gradient of that product.  Those of both matrices are written where they belong."""
        of_one = behind @ self.down
        of_factor = (of_one * self.inner).sum(1)
        of_inner = of_one.mul_(factor)
        if self.other is None:
            of_before = self.derivative(of_inner, self.gate)
        else:
            of_gate = self.derivative(of_inner * self.other, self.gate)
            of_before = torch.cat([of_gate, of_inner * self.function(self.gate)], 1)
        torch.mm(behind.T, self.inner.mul_(factor), out=of_down)
        torch.mm(of_before.T, self.rows, out=of_up)
        return of_before @ self.up, of_factor


def _routes(chosen: torch.Tensor, experts: int) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Per expert that anybody chose: its number, its tokens, and the places of their choices."""
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    ends = torch.arange(experts + 1, device=flat.device)
    # One wait for the device, where a loop over `nonzero` would be one per expert.
    bounds = torch.searchsorted(flat[order], ends).tolist()
    for expert in range(experts):
        choice = order[bounds[expert] : bounds[expert + 1]]
        if len(choice):
            yield expert, choice // chosen.shape[1], choice
