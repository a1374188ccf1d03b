"""Experts that tokens travel to: ranks of one axis have their own tokens and their own experts.

Each choice of a token is a row.  Rows are sorted by expert, sent to the rank that has the expert by an
all-to-all of uneven parts, multiplied there, and sent back; no row is dropped, and none is padded
(GShard, Lepikhin et al. 2020, without capacity).  Gradients travel the same ways.

The host reads the numbers of rows once in the forward: what is sent and allocated depends on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist

from autopar.ops.expert_rows import Bounds, Experts
from autopar.ops.experts import Routes, sort_choices
from autopar.runtime import _torch
from autopar.runtime.axes import Axis


def expert_dispatch(
    x: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    activation: str,
    up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    constants: Sequence[float] = (),
    *,
    axis: Axis,
) -> torch.Tensor:
    """Return `routed_experts` of this rank's tokens, by the experts of all ranks along `axis`.

    Rank r has the r-th block of the experts.  `chosen` counts them over all ranks.
    """
    made: torch.Tensor = _Dispatch.apply(
        x, chosen.long(), weights, up, down, activation, up_bias, down_bias, tuple(constants), axis
    )
    return made


@dataclass(frozen=True)
class Journey:
    """Where this rank's rows go, and how those that arrive are ordered.

    `sent` and `received` are the rows to and from each rank.  Those that arrive come by rank, and
    `arrival` orders them by expert; an expert's then lie between two neighbours of `bounds`.
    """

    routes: Routes
    sent: list[int]
    received: list[int]
    arrival: torch.Tensor
    bounds: Bounds
    group: dist.ProcessGroup

    @staticmethod
    def read(
        shape: torch.Size,
        order: torch.Tensor,
        counts: torch.Tensor,
        figures: list[int],
        group: dist.ProcessGroup,
        size: int,
    ) -> Journey:
        """Return the journey of sorted choices of `shape` [tokens, choices].

        `counts` and `figures` are the same: where this rank's rows for each expert begin and end
        (`sort_choices`), then how many come from each rank for each expert here.
        """
        experts = len(figures) // 2
        each = experts // size
        ends, come = figures[: experts + 1], figures[experts + 1 :]
        received = [sum(come[rank * each : (rank + 1) * each]) for rank in range(size)]
        numbers = torch.arange(each, device=counts.device).repeat(size)
        by_rank = numbers.repeat_interleave(counts[experts + 1 :], output_size=sum(received))
        return Journey(
            Routes.between(shape, order, ends),
            [ends[(rank + 1) * each] - ends[rank * each] for rank in range(size)],
            received,
            by_rank.argsort(stable=True),
            (0, *accumulate(sum(come[expert::each]) for expert in range(each))),
            group,
        )

    def there(self, rows: torch.Tensor) -> torch.Tensor:
        """Send rows to their experts' ranks; return those that arrive, by expert."""
        made = self._exchanged(rows, self.sent, self.received)
        del rows
        return made[self.arrival]

    def back(self, rows: torch.Tensor) -> torch.Tensor:
        """Send rows by expert back to their tokens' ranks."""
        by_rank = torch.empty_like(rows)
        by_rank[self.arrival] = rows
        del rows
        return self._exchanged(by_rank, self.received, self.sent)

    def _exchanged(self, rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        made = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(made, rows.contiguous(), received, sent, group=self.group)
        return made


def _counted(
    chosen: torch.Tensor, experts: int, size: int, group: dist.ProcessGroup
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort the choices, and exchange how many rows each rank sends for each of `experts` per rank."""
    order, ends = sort_choices(chosen, experts * size)
    leaving = ends.diff()
    come = torch.empty_like(leaving)
    dist.all_to_all_single(come, leaving, group=group)
    return order, torch.cat([ends, come])


def _forward(
    journey: Journey, x: torch.Tensor, weights: torch.Tensor, experts: Experts
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    routes = journey.routes
    arrived = journey.there(x[routes.tokens])
    made, before = experts.forward(arrived.to(experts.up.dtype), journey.bounds)
    passed = [made]
    del made  # freed while results are on their way
    return routes.summed(journey.back(passed.pop()), weights).to(x.dtype), arrived, before


def _backward(
    journey: Journey,
    gradient: torch.Tensor,
    weights: torch.Tensor,
    arrived: torch.Tensor,
    before: torch.Tensor,
    experts: Experts,
) -> tuple[Any, ...]:
    """Return the gradients of x, weights, up, down and the biases, None without a bias."""
    routes, dtype = journey.routes, experts.up.dtype
    found = experts.backward(
        lambda: arrived.to(dtype),
        before,
        journey.bounds,
        journey.there(gradient[routes.tokens]).to(dtype),
        journey.there(routes.factors(weights)).to(dtype),
    )
    of_x = routes.summed(journey.back(found.rows)).to(gradient.dtype)
    of_factors = journey.back(found.factors.to(weights.dtype)[:, None])[:, 0]
    of_weights = routes.scattered(of_factors, weights)
    return of_x, of_weights, found.up, found.down, found.up_bias, found.down_bias


def _hidden(rows: torch.Tensor) -> torch.Tensor:
    """Return a tensor without elements that keeps these: compiled code checks sizes it cannot know."""
    return rows.view(-1)[:0]


def _shown(hidden: torch.Tensor, count: int, width: int) -> torch.Tensor:
    """Return the rows [count, width] that a hidden tensor keeps."""
    return hidden.as_strided((count, width), (width, 1), 0)


@torch.library.custom_op("autopar::expert_dispatch_forward", mutates_args=())
def _compiled_forward(
    x: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    up_bias: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    activation: str,
    constants: Sequence[float],
    size: int,
    group: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the sums, and what the backward needs: hidden rows, and their order and counts."""
    experts = Experts(up, down, activation, up_bias, down_bias, tuple(constants))
    ranks = _torch.group_named(group)
    order, counts = _counted(chosen, up.shape[0], size, ranks)
    journey = Journey.read(chosen.shape, order, counts, counts.tolist(), ranks, size)
    made, arrived, before = _forward(journey, x, weights, experts)
    return made, _hidden(arrived), _hidden(before), order, counts


@_compiled_forward.register_fake
def _(  # type: ignore[no-untyped-def]
    x, chosen, weights, up, down, up_bias, down_bias, activation, constants, size, group
):
    return (
        x.new_empty(x.shape[0], down.shape[1]),
        x.new_empty(0),
        up.new_empty(0),
        chosen.new_empty(chosen.numel()),
        chosen.new_empty(2 * up.shape[0] * size + 1),
    )


@torch.library.custom_op("autopar::expert_dispatch_backward", mutates_args=())
def _compiled_backward(
    gradient: torch.Tensor,
    weights: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    up_bias: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    arrived: torch.Tensor,
    before: torch.Tensor,
    order: torch.Tensor,
    counts: torch.Tensor,
    activation: str,
    constants: Sequence[float],
    size: int,
    group: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of x, weights, up, down and the biases; empty ones without a bias."""
    experts = Experts(up, down, activation, up_bias, down_bias, tuple(constants))
    ranks, figures = _torch.group_named(group), counts.tolist()
    journey = Journey.read(weights.shape, order, counts, figures, ranks, size)
    rows = sum(journey.received)
    of_x, of_weights, of_up, of_down, *of_biases = _backward(
        journey,
        gradient,
        weights,
        _shown(arrived, rows, up.shape[2]),
        _shown(before, rows, up.shape[1]),
        experts,
    )
    one, two = (up.new_empty(0) if bias is None else bias for bias in of_biases)
    return of_x, of_weights, of_up, of_down, one, two


@_compiled_backward.register_fake
def _(  # type: ignore[no-untyped-def]
    gradient, weights, up, down, up_bias, down_bias, *_
):
    biases = (up.new_empty(0) if b is None else torch.empty_like(b) for b in (up_bias, down_bias))
    of_x = gradient.new_empty(gradient.shape[0], up.shape[2])
    return of_x, *map(torch.empty_like, (weights, up, down)), *biases


class _Dispatch(torch.autograd.Function):
    """Saves the rows that arrived; x is not needed again.

    In a graph of `torch.compile` each pass is one operator.
    """

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
        constants: tuple[float, ...],
        axis: Axis,
    ) -> torch.Tensor:
        made: torch.Tensor
        matrices = up, down, up_bias, down_bias
        ctx.axis, ctx.activation, ctx.constants = axis, activation, constants
        if torch.compiler.is_compiling():
            place = activation, constants, axis.size, axis.group_name
            made, arrived, before, order, counts = torch.ops.autopar.expert_dispatch_forward(
                x, chosen, weights, *matrices, *place
            )
        else:
            experts = Experts(up, down, activation, up_bias, down_bias, constants)
            order, counts = _counted(chosen, up.shape[0], axis.size, axis.group)
            ctx.figures = counts.tolist()
            journey = Journey.read(chosen.shape, order, counts, ctx.figures, axis.group, axis.size)
            made, arrived, before = _forward(journey, x, weights, experts)
        ctx.save_for_backward(weights, *matrices, arrived, before, order, counts)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        axis, saved = ctx.axis, ctx.saved_tensors  # recomputed: they can be read once
        biases = saved[3:5]
        if torch.compiler.is_compiling():
            place = ctx.activation, ctx.constants, axis.size, axis.group_name
            found = torch.ops.autopar.expert_dispatch_backward(gradient, *saved, *place)
        else:
            weights, up, down, up_bias, down_bias, arrived, before, order, counts = saved
            experts = Experts(up, down, ctx.activation, up_bias, down_bias, ctx.constants)
            journey = Journey.read(weights.shape, order, counts, ctx.figures, axis.group, axis.size)
            found = _backward(journey, gradient, weights, arrived, before, experts)
        of_x, of_weights, of_up, of_down, one, two = found
        one, two = (None if b is None else g for b, g in zip(biases, (one, two), strict=True))
        return of_x, None, of_weights, of_up, of_down, None, one, two, None, None
