"""The experts of a mixture of experts as one operator, so that experts can be split over ranks.

Every token is routed to the experts that it chose, without a capacity limit. An expert is two
products with an activation between them. Written as several operators, this would need all rows of
a sum that ranks hold as partial sums. As one operator, each rank computes the rows of its own
experts, and the results add up.

Autograd saves the operands and the rows after the first product, ordered by expert. The number of
rows is known only at run time: if experts are split, fake tensors have a row for every choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from autopar.ops.expert_rows import Bounds, Experts

_library = torch.library.Library("autopar", "FRAGMENT")
_library.define(
    "routed_experts(Tensor x, Tensor chosen, Tensor weights, Tensor up, Tensor down, str activation,"
    " Tensor? up_bias=None, Tensor? down_bias=None, float[] constants=[]) -> Tensor"
)


def routed_experts(
    x: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    activation: str,
    up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    constants: Sequence[float] = (),
) -> torch.Tensor:
    """Return the sum over each token's experts [tokens, out].

    A choice that is no expert's number adds nothing. x is [tokens, in], chosen and weights are
    [tokens, choices]; `autopar.ops.expert_rows.Experts` has the shapes of the rest.
    """
    made: torch.Tensor = torch.ops.autopar.routed_experts(
        x, chosen, weights, up, down, activation, up_bias, down_bias, constants
    )
    return made


@torch.library.custom_op("autopar::routed_experts_forward", mutates_args=())
def _mixture(
    x: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    activation: str,
    up_bias: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    constants: Sequence[float],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sums, and the rows [rows, up's rows] after the first product, ordered by expert."""
    rest = activation, up_bias, down_bias, constants
    return _forward(Routes.of(chosen, up.shape[0]), x, weights, up, down, *rest)


_mixture.register_fake(
    lambda x, chosen, weights, up, down, *_: (
        x.new_empty(x.shape[0], down.shape[1]),
        up.new_empty(chosen.numel(), up.shape[1]),
    )
)


def _forward(
    routes: Routes,
    x: torch.Tensor,
    weights: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    activation: str,
    up_bias: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    constants: Sequence[float],
) -> tuple[torch.Tensor, torch.Tensor]:
    experts = Experts(up, down, activation, up_bias, down_bias, tuple(constants))
    made, before = experts.forward(x[routes.tokens].to(up.dtype), routes.bounds)
    return routes.summed(made, weights).to(x.dtype), before


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
    up_bias: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    constants: Sequence[float],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of x, weights, up, down and the biases; empty ones without a bias."""
    routes, rest = Routes.of(chosen, up.shape[0]), (activation, up_bias, down_bias, constants)
    return _backward(routes, gradient, x, weights, up, down, before, *rest)


_gradients.register_fake(
    lambda gradient, x, chosen, weights, up, down, before, _, up_bias, down_bias, *__: (
        *(torch.empty_like(value) for value in (x, weights, up, down)),
        *(
            up.new_empty(0) if bias is None else torch.empty_like(bias)
            for bias in (up_bias, down_bias)
        ),
    )
)


def _backward(
    routes: Routes,
    gradient: torch.Tensor,
    x: torch.Tensor,
    weights: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    before: torch.Tensor,
    activation: str,
    up_bias: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    constants: Sequence[float],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    experts = Experts(up, down, activation, up_bias, down_bias, tuple(constants))
    found = experts.backward(
        lambda: x[routes.tokens].to(up.dtype),
        before,
        routes.bounds,
        gradient[routes.tokens].to(up.dtype),
        routes.factors(weights).to(up.dtype),
    )
    return (
        routes.summed(found.rows).to(x.dtype),
        routes.scattered(found.factors, weights),
        found.up,
        found.down,
        up.new_empty(0) if found.up_bias is None else found.up_bias,
        up.new_empty(0) if found.down_bias is None else found.down_bias,
    )


def _evenly(
    run: Callable[..., Any], chosen: int, matrices: int
) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return an implementation that takes all operands and gives every expert as many rows."""

    def shown(*operands: Any) -> tuple[torch.Tensor, ...]:
        routes = Routes.evenly(operands[chosen], operands[matrices].shape[0])
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
    def forward(
        ctx: Any,
        x: torch.Tensor,
        chosen: torch.Tensor,
        weights: torch.Tensor,
        up: torch.Tensor,
        down: torch.Tensor,
        activation: str,
        up_bias: torch.Tensor | None,
        down_bias: torch.Tensor | None,
        constants: Sequence[float],
    ) -> torch.Tensor:
        made: torch.Tensor
        rest = activation, up_bias, down_bias, constants
        made, before = _mixture(x, chosen, weights, up, down, *rest)
        ctx.activation, ctx.constants = activation, constants
        ctx.save_for_backward(x, chosen, weights, up, down, before, up_bias, down_bias)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        *tensors, up_bias, down_bias = ctx.saved_tensors
        biases = up_bias, down_bias
        found = _gradients(gradient, *tensors, ctx.activation, *biases, ctx.constants)
        of_x, of_weights, of_up, of_down, *of_biases = found
        given = (None if b is None else g for b, g in zip(biases, of_biases, strict=True))
        return of_x, None, of_weights, of_up, of_down, None, *given, None


def _filled(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return all arguments: the dispatcher leaves out last ones that equal their defaults."""
    return *inputs, *(None, None, ())[len(inputs) - 6 :]


_library.impl(
    "routed_experts", lambda *inputs: _mixture(*_filled(inputs))[0], "CompositeExplicitAutograd"
)
_library.impl("routed_experts", lambda *inputs: _Experts.apply(*_filled(inputs)), "Autograd")
torch.library.register_fake(
    "autopar::routed_experts",
    lambda x, chosen, weights, up, down, *_: x.new_empty(x.shape[0], down.shape[1]),
    lib=_library,
)


@dataclass(frozen=True)
class Routes:
    """The choices, each of which is a row, sorted by expert; choices of no expert are left out.

    `shape` is [tokens, choices]; an expert's rows lie between two neighbours of `bounds`.
    """

    shape: torch.Size
    bounds: Bounds
    choices: torch.Tensor
    tokens: torch.Tensor

    @staticmethod
    def of(chosen: torch.Tensor, experts: int) -> Routes:
        """Route each token to the experts that it chose."""
        order, ends = sort_choices(chosen, experts)
        # One synchronisation with the device. A loop over `nonzero` would need one per expert.
        return Routes.between(chosen.shape, order, ends.tolist())

    @staticmethod
    def between(shape: torch.Size, order: torch.Tensor, ends: list[int]) -> Routes:
        """Route sorted choices; those of expert e lie between `ends` e and e + 1."""
        first = ends[0]
        choices = order[first : ends[-1]]
        return Routes(shape, tuple(end - first for end in ends), choices, choices // shape[1])

    @staticmethod
    def evenly(chosen: torch.Tensor, experts: int) -> Routes:
        """Route equally many choices to every expert, whatever was chosen."""
        choices = chosen.flatten().argsort()
        bounds = tuple(len(choices) * number // experts for number in range(experts + 1))
        return Routes(chosen.shape, bounds, choices, choices // chosen.shape[1])

    def factors(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the weight of each row [rows, 1]."""
        return weights.flatten()[self.choices, None]

    def scattered(self, of_factors: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the weights from that of each row's weight [rows]."""
        made = weights.new_zeros(weights.shape)
        made.view(-1)[self.choices] = of_factors.to(weights.dtype)
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


def sort_choices(chosen: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the order of the flat choices by expert, and where each expert's begin and end in it.

    The latter is [experts + 1]; choices of no expert come before and behind.
    """
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    numbers = torch.arange(experts + 1, device=flat.device)
    return order, torch.searchsorted(flat[order], numbers)
