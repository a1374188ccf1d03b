"""A first bound: the work of all groups, spread evenly over all devices.

For prices y[p] >= 0 of a second on a device of pool p, normalised so that all devices together cost 1 a
second, no plan has a smaller load than the sum over groups of the least price at which it can run:

    T  >=  sum over groups of  min over moves m of  y[pool of m] * devices of m * seconds[m, g]

The best prices are the dual solution of a small linear program.  The bound holds for any prices, so it
does not depend on the program's accuracy.
"""

from __future__ import annotations

import numpy as np

from autopar.pipeline.planner.lattice.additive import AdditiveLoads
from autopar.pipeline.planner.lattice.downsets import Array
from autopar.pipeline.planner.lattice.exact import rounded_down


def prices_of(loads: AdditiveLoads) -> Array:
    """Return the price of a second on a device of each pool; those of all devices sum to 1."""
    work = _pool_work(loads)
    counts = np.array(loads.devices, dtype=float)
    used = np.flatnonzero((counts > 0) & np.isfinite(work).any(axis=1))
    prices = np.zeros(len(counts))
    prices[used] = _dual(work[used], counts[used]) if len(used) > 1 else 1.0
    total = float(prices @ counts)
    return prices / total if total > 0 else prices


def priced_work(loads: AdditiveLoads, prices: Array) -> Array:
    """Return the least price of each group; infinite where no move offers it.

    They are rounded down, so that sums are exact in any order.
    """
    work = _pool_work(loads)
    with np.errstate(invalid="ignore"):
        priced = np.where(np.isfinite(work), prices[:, None] * work, np.inf)
    least: Array = priced.min(axis=0, initial=np.inf)
    return rounded_down(least)


def _pool_work(loads: AdditiveLoads) -> Array:
    """[pool, group]: device-seconds on the pool's cheapest move, infinite where there is none."""
    work = np.full((len(loads.devices), len(loads.order)), np.inf)
    for move, seconds, missing in zip(loads.moves, loads.seconds, loads.missing, strict=True):
        offered = np.where(missing > 0, np.inf, move.taken * seconds)
        np.minimum(work[move.pool], offered, out=work[move.pool])
    return work


def _dual(work: Array, counts: Array) -> Array:
    """Return the prices for which the sum of least prices is largest, by a linear program.

    Maximise the sum of z[g] with z[g] <= y[p] work[p, g], and the sum of y[p] counts[p] = 1.
    """
    from ortools.linear_solver import pywraplp  # type: ignore[attr-defined]

    program = pywraplp.Solver.CreateSolver("GLOP")
    scale = float(work[np.isfinite(work)].max()) or 1.0
    y = [program.NumVar(0.0, program.infinity(), "") for _ in counts]
    program.Add(sum(count * price for count, price in zip(counts.tolist(), y, strict=True)) == 1)
    total = program.Objective()
    for group in range(work.shape[1]):
        z = program.NumVar(0.0, program.infinity(), "")
        total.SetCoefficient(z, 1.0)
        for pool in np.flatnonzero(np.isfinite(work[:, group])):
            program.Add(z <= float(work[pool, group]) / scale * y[pool])
    total.SetMaximization()
    program.Solve()
    found = np.array([max(0.0, price.solution_value()) for price in y])
    return found if found.any() else np.ones(len(counts))
