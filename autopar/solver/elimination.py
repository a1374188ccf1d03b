"""Exact min-sum variable elimination (bucket elimination; Dechter 1999).

    minimise over x:   sum_t  price . arrays_t[x_scope(t)]

A variable v is eliminated by adding up every table that mentions it, J(s, x_v) over its neighbours'
states s, and replacing them by m(s) = min_{x_v} J(s, x_v), in an order that is found once for all
prices (`order`).

Where J was too large for that, its tables are minimised in groups.  Then the result is a lower bound,
and the states that are read back are good but perhaps not best.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from autopar.errors import InfeasibleError
from autopar.solver.network import Prices, Table
from autopar.solver.order import Least, Order
from autopar.solver.problem import Array

Number = TypeVar("Number", bound=np.generic)
AT_ONCE = 1 << 15
"""Entries of a joint table that is built: it stays in a processor's cache."""


@dataclass(frozen=True, eq=False)
class Elimination:
    """The tables that an order leaves at some prices, the best states, and a lower bound."""

    order: Order
    values: tuple[Array, ...]
    """By content."""
    states: tuple[int, ...]
    bound: float
    """In priced ticks; no assignment costs less."""


def eliminate(order: Order, prices: Prices | None = None) -> Elimination:
    """The optimum at these prices, None: of ticks; `InfeasibleError` where no assignment is finite.

    With no price on ticks, what they forbid is still forbidden.
    """
    prices = order.network.free if prices is None else prices
    values: list[Array] = []
    for content in order.contents:
        if isinstance(content, Table):
            values.append(_priced(content, prices))
        else:
            values.append(_least(content, values))
    bound = float(sum(values[content] for content in order.constants))
    if not math.isfinite(bound):
        raise InfeasibleError("No combination of candidates is allowed by the constraints.")
    return Elimination(order, tuple(values), _read_back(order, values), bound)


def _read_back(order: Order, values: list[Array]) -> tuple[int, ...]:
    """Each variable's best state given those of the variables eliminated after it; ties: the first."""
    states = [0] * len(order.network.sizes)
    for bucket in reversed(order.buckets):
        rows = []
        for number in itertools.chain.from_iterable(bucket.groups):
            message = order.messages[number]
            at = [slice(None) if i == bucket.variable else states[i] for i in message.scope]
            rows.append(values[message.content][tuple(at)])
        states[bucket.variable] = int(sum(rows[1:], rows[0]).argmin()) if rows else 0
    return tuple(states)


def _priced(table: Table, prices: Prices) -> Array:
    """A table at prices.  All but ticks is rounded down: a lower bound stays one."""
    ticks, *others = table.arrays
    total: Array = ticks if prices[0] == 1.0 else np.where(np.isfinite(ticks), 0.0, np.inf)
    priced = [price * array for price, array in zip(prices[1:], others, strict=True) if price]
    return total + np.floor(sum(priced)) if priced else total


def _least(least: Least, values: list[Array]) -> Array:
    """All states of the variable at once where the joint table is small, else one after the other."""
    views = [values[content].transpose(order)[at] for content, order, at in least.aligned]
    joint = np.broadcast_shapes(*(view.shape for view in views))
    if math.prod(joint) <= AT_ONCE:
        return np.asarray(summed(views).min(axis=0))
    found = summed([view[0] for view in views])
    for state in range(1, joint[0]):
        np.minimum(found, summed([view[state] for view in views]), out=found)
    return found


def summed(views: Sequence[Array]) -> Array:
    """Of all their states; a sum that has grown to its full size is added to where it is."""
    total = views[0] + views[1] if len(views) > 1 else views[0].copy()
    for view in views[2:]:
        grows = any(mine < its for mine, its in zip(total.shape, view.shape, strict=True))
        total = np.add(total, view, out=None if grows else total)
    return total


def aligned(
    table: NDArray[Number], scope: tuple[int, ...], full: tuple[int, ...]
) -> NDArray[Number]:
    """The table as a view whose dims are those of `full`, of size one where it has none."""
    order = sorted(range(len(scope)), key=lambda place: full.index(scope[place]))
    shape = [table.shape[scope.index(index)] if index in scope else 1 for index in full]
    return table.transpose(order).reshape(shape)
