"""The best split of additive loads into stages, with a bound, within a given effort.

1. Leaves that cost nothing are merged (`contraction.py`).
2. The prefixes of a few topological orders give a first plan.
3. All downsets are enumerated.  If there are not too many, the least load that the relaxation of
   `reach.py` reaches is a bound.  From there the limit on loads rises: either no chain has loads within
   it, which raises the bound, or the best chain within it is found, which is optimal.
4. If there are too many, the relaxation on a part of the groups gives the bound (`trace.py`).  Plans are
   improved on the downsets near the best plan's order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autopar.pipeline.planner.lattice.additive import AdditiveLoads
from autopar.pipeline.planner.lattice.area import priced, prices_of
from autopar.pipeline.planner.lattice.chains import Chain, best_chain
from autopar.pipeline.planner.lattice.contraction import contracted
from autopar.pipeline.planner.lattice.downsets import Lattice, lattice_of
from autopar.pipeline.planner.lattice.effort import Budget, Effort
from autopar.pipeline.planner.lattice.exact import Array
from autopar.pipeline.planner.lattice.order import Ints, Order
from autopar.pipeline.planner.lattice.reach import Costs, reached, reaching
from autopar.pipeline.planner.lattice.sequences import ranked, usual_sequences
from autopar.pipeline.planner.lattice.sums import (
    Sums,
    devices_of,
    limits_of,
    numbered_along,
    sums_of,
)
from autopar.pipeline.planner.lattice.trace import largest_trace, trace_costs

CLOSE = 1e-4
"""The relaxation's bound is computed up to this difference, relative to the load of the first plan."""
FIRST_RISE, MOST_RISE = 2.0**-9, 2.0**-4
"""By how much the limit on loads rises at first and at most, relative to it."""
FOR_PROOF = 0.7
"""The share of the effort after which the proof of a plan is given up, and plans are improved."""
STALLED = 6
"""Rounds that find no better plan, after which more downsets are searched."""
SLIGHTLY = 1e-9
"""A plan is only taken if its load is less by this relative difference."""


@dataclass(frozen=True)
class Part:
    """A stage: layers, and the index of its move."""

    layers: tuple[int, ...]
    move: int


@dataclass(frozen=True)
class Split:
    """Stages from first to last, their largest load, and a bound.

    There are no stages if none were found; `is_over` says that then none exist.  `downsets` is the
    number of downsets, None if there are more than the effort allows; `pairs` of them were compared.
    """

    parts: tuple[Part, ...]
    load_s: float
    bound_s: float
    is_over: bool
    downsets: int | None
    pairs: int


def best_split(loads: AdditiveLoads, effort: Effort) -> Split:
    """Return the best split that is found within the effort."""
    search = _Search(contracted(loads), Budget(effort))
    search.start()
    lattice = lattice_of(search.loads.order, effort.most_downsets, effort.edges)
    if lattice is not None:
        search.prove(lattice)
    else:
        search.relax()
    if not search.is_over:
        search.improve()
    return Split(
        search.parts,
        search.load_s,
        min(search.bound_s, search.load_s),
        search.is_over,
        None if lattice is None else len(lattice),
        search.budget.visited,
    )


class _Search:
    """The best plan and the best bound so far; `is_over` once no better ones exist."""

    def __init__(self, loads: AdditiveLoads, budget: Budget) -> None:
        """Start without a plan, with the bound of evenly spread work."""
        self.loads, self.budget = loads, budget
        self.prices = prices_of(loads.pool_work, np.array(loads.devices, dtype=float))
        self.devices = devices_of(loads, self.prices)
        self.bound_s = float(priced(loads.pool_work, self.prices).sum())
        self.load_s = math.inf
        self.parts: tuple[Part, ...] = ()
        self.is_over = False

    @property
    def most_s(self) -> float:
        """The best load so far, or one that no stage exceeds."""
        every = self.loads.seconds.sum(axis=1) + self.loads.crossing.sum(axis=1)
        return min(self.load_s, float(every.max(initial=0.0)))

    def start(self) -> None:
        """Take the best plan along some topological orders."""
        for sequence in usual_sequences(self.loads.order):
            self._plan_along(sequence, 1, len(sequence) + 1)

    def prove(self, lattice: Lattice) -> None:
        """Raise the limit on loads from the relaxation's bound until a chain is found."""
        sums = sums_of(self.loads, lattice, self.prices, self.bound_s)
        self._raise_bound(lattice, sums.costs)
        rise, spend = FIRST_RISE, self.budget.spender(FOR_PROOF)
        while not self.is_over:
            limit_s = min(self.bound_s + rise * (self.bound_s or self.most_s), self.most_s)
            chain = self._chain(lattice, sums, limit_s, spend)
            if not chain.is_complete:
                return
            if chain.stages and chain.load_s < self.load_s:
                self._take(self.loads, lattice, chain)
            self.bound_s = min(limit_s, self.load_s)
            self.is_over = bool(chain.stages) or limit_s >= self.most_s
            rise = min(2 * rise, MOST_RISE)

    def relax(self) -> None:
        """Raise the bound by the relaxation on the groups with the most work."""
        work = priced(self.loads.pool_work, self.prices)
        chosen, lattice = largest_trace(self.loads, work, self.budget.effort.trace)
        costs = trace_costs(self.loads, chosen, lattice, self.prices, self.bound_s)
        self._raise_bound(lattice, costs)

    def improve(self) -> None:
        """Search the downsets near the best plan's order, in another order of each stage each time.

        It ends when the effort does, or, where that is counted in work, when no better plan is found.
        """
        random = np.random.default_rng(0)
        spend = self.budget.spender(1.0)
        sizes = iter(self.budget.effort.near)
        near, width, failed = next(sizes), 1, 0
        while self.bound_s < self.load_s < math.inf and spend(0):
            if failed == STALLED:
                larger = next(sizes, None)
                if larger is None and self.budget.effort.seconds is None:
                    break
                near, failed = larger or near, 0
            rank = self._stage_of_group() + random.random(len(self.loads.order))
            sequence = ranked(self.loads.order, rank)
            width = self._widest(sequence, width, near)
            failed = 0 if self._plan_along(sequence, width, near) else failed + 1

    def _plan_along(self, sequence: Ints, width: int, near: int) -> bool:
        """Take the best plan whose downsets are near a topological order; whether it is better."""
        loads = numbered_along(self.loads, sequence)
        lattice = lattice_of(loads.order.banded(width), near)
        if lattice is None:
            return False
        sums = sums_of(loads, lattice, self.prices, self.bound_s)
        limit_s = self.most_s * (1 - SLIGHTLY) if self.parts else self.most_s
        chain = self._chain(lattice, sums, limit_s, self.budget.spender(1.0))
        is_better = chain.load_s < self.load_s
        if is_better:
            self._take(loads, lattice, chain)
        return is_better

    def _widest(self, sequence: Ints, width: int, near: int) -> int:
        """Return the largest width at which the downsets near an order are not too many."""
        order = Order(self.loads.order.before[np.ix_(sequence, sequence)])
        while width > 1 and lattice_of(order.banded(width), near) is None:
            width -= 1
        while width < len(order) and lattice_of(order.banded(width + 1), near) is not None:
            width += 1
        return width

    def _stage_of_group(self) -> Array:
        """Return the number of the best plan's stage in which each group is."""
        at = {layer: number for number, part in enumerate(self.parts) for layer in part.layers}
        return np.array([at[layers[0]] for layers in self.loads.members], dtype=float)

    def _take(self, loads: AdditiveLoads, lattice: Lattice, chain: Chain) -> None:
        """Remember a plan."""
        self.load_s = chain.load_s
        self.parts = tuple(
            Part(
                tuple(
                    sorted(
                        layer
                        for group in lattice.groups(stage.start, stage.end)
                        for layer in loads.members[group]
                    )
                ),
                stage.move,
            )
            for stage in chain.stages
        )

    def _raise_bound(self, lattice: Lattice, costs: Costs) -> None:
        """Raise the bound to the least load that the relaxation reaches, by bisection."""
        low, high = self.bound_s, self.most_s
        if not self._reaches(lattice, costs, high):
            self.is_over = not self.parts
            return
        close = CLOSE * high
        while high - low > close:
            middle = (low + high) / 2
            if self._reaches(lattice, costs, middle):
                high = middle
            else:
                low = middle
        self.bound_s = low

    def _reaches(self, lattice: Lattice, costs: Costs, limit_s: float) -> bool:
        limits = limits_of(self.loads, costs, limit_s)
        return bool(reached(lattice, costs, self.devices, limits)[-1, -1])

    def _chain(
        self, lattice: Lattice, sums: Sums, limit_s: float, spend: Callable[[int], bool]
    ) -> Chain:
        """Return the best chain within a limit, among the states that the relaxation allows."""
        limits = limits_of(self.loads, sums.costs, limit_s)
        forward = reached(lattice, sums.costs, self.devices, limits)
        if not forward[-1, -1]:
            return Chain((), math.inf, True)
        onward = reaching(lattice, sums.costs, self.devices, limits)[::-1]
        allowed = np.ascontiguousarray((forward & onward).T)
        return best_chain(
            lattice, sums.ranges, sums.crossings, self.devices, allowed, limit_s, spend
        )
