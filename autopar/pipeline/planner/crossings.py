"""Transfers between stages as operators of the recurrence, and backtracking from values to a plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from autopar.pipeline.planner.priced import Picked, Priced
from autopar.pipeline.planner.recurrence import Array, Crossing, end_of_chain

CostsAt = Callable[[int], Sequence[Array]]
"""Returns per stack the costs of its ways at a position from the end."""
CrossAt = Callable[[int], Crossing]


def adding(passing: Array) -> Crossing:
    """Return the operator passing + F; an infinite `passing` forbids a transfer."""
    cost = passing.transpose(1, 2, 0)[:, :, :, None]
    return lambda best, cuts: cost[:, :, cuts] + best[None]


def longest(station: Array, passing: Array) -> Crossing:
    """Return the operator max(station, passing + F)."""
    least, cost = (array.transpose(1, 2, 0)[:, :, :, None] for array in (station, passing))
    return lambda best, cuts: np.maximum(least[:, :, cuts], cost[:, :, cuts] + best[None])


def always(cross: Crossing) -> CrossAt:
    """Return a function that gives this operator at every position."""
    return lambda position: cross


def walk(
    priced: Priced, found: Sequence[Array], costs_at: CostsAt, cross_at: CrossAt
) -> tuple[Picked, ...]:
    """Return the stages, first to last, that attain the best value in `found`, for additive costs.

    Each step repeats the minimisation that produced its value.
    """
    ends = [float(best[:, 0, -1].min()) for best in found]
    stages = ends.index(min(ends)) + 1
    state = int(found[stages - 1][:, 0, -1].argmin()), 0, priced.sizes[2]
    picked: list[Picked] = []
    for position in range(stages, 0, -1):
        if position > 1:
            behind = cross_at(position)(found[position - 2], slice(None))
        else:
            last = end_of_chain(*priced.sizes)
            behind = np.broadcast_to(last, (len(last), *last.shape))
        number, end, entry = _step(priced, behind, position, costs_at(position), state)
        picked.append((state[1], end, number))
        state = entry, end, state[2] - priced.table.ways[number].size // priced.unit
    return tuple(picked)


def _step(
    priced: Priced,
    behind: Array,
    position: int,
    costs: Sequence[Array],
    state: tuple[int, int, int],
) -> tuple[int, int, int]:
    """Return the best way, its end and the entry layout there; `behind`: [exit, entry, end, devices]."""
    entry, start, left = state
    held = priced.in_flight(position)
    best = (math.inf, 0, 0, 0)
    for stack, cost in zip(priced.stacks, costs, strict=True):
        if stack.entry != entry or stack.size > left:
            continue
        cells = stack.starting(start)
        if cells.start == cells.stop:
            continue
        own = np.where(stack.flights[:, cells] >= held, cost[:, cells], math.inf)
        following = behind[stack.exit, :, stack.ends[cells], left - stack.size]
        value = own.min(axis=0) + following.min(axis=1)
        least = int(value.argmin())
        if value[least] < best[0]:
            way = stack.ways[int(own[:, least].argmin())]
            end = int(stack.ends[cells][least])
            best = (float(value[least]), way, end, int(following[least].argmin()))
    return best[1:]
