"""A first bound: the work of all groups, spread evenly over all devices.

For prices y[p] >= 0 of a second on a device of pool p, normalised so that all devices together cost 1 a
second, no plan has a smaller load than the sum over groups of the least price at which it can run:

    T  >=  sum over groups of  min over moves m of  y[pool of m] * devices of m * seconds[m, g]

The best prices are the dual solution of a small linear program.  The bound holds for any prices, so it
does not depend on the program's accuracy.
"""

from __future__ import annotations

import numpy as np

from autopar.pipeline.planner.lattice.exact import Array, rounded_down


def prices_of(work: Array, counts: Array) -> Array:
    """Return the price of a second on a device of each pool; those of all devices sum to 1.

    `work[p, g]` are the device-seconds of group g on pool p, infinite where it cannot run there, and
    `counts[p]` are the devices of pool p.
    """
    used = np.flatnonzero((counts > 0) & np.isfinite(work).any(axis=1))
    prices = np.zeros(len(counts))
    prices[used] = _dual(work[used], counts[used]) if len(used) > 1 else 1.0
    total = float(prices @ counts)
    return prices / total if total > 0 else prices


def priced(work: Array, prices: Array) -> Array:
    """Return the least price of each group; infinite where no pool can run it.

    They are rounded down, so that sums are exact in any order.
    """
    with np.errstate(invalid="ignore"):
        costs = np.where(np.isfinite(work), prices[:, None] * work, np.inf)
    return rounded_down(costs.min(axis=0, initial=np.inf))


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
