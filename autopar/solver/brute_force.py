"""Every assignment is tried: the reference for small problems."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autopar.solver.problem import Array, Assignment, Limits, Problem, limits_of


def brute_force(problem: Problem, limits: Limits = None) -> Assignment | None:
    """Return the optimum by enumeration, as a reference for small problems; None if infeasible."""
    sizes = [variable.size for variable in problem.variables]
    given = limits_of(limits)
    seconds, uncovered, *loads = (np.zeros(sizes) for _ in range(2 + len(given)))
    for factor in problem.tables:
        seconds += _spread(factor.seconds, factor.scope, sizes)
        if factor.uncovered is not None:
            uncovered += _spread(factor.uncovered, factor.scope, sizes)
        for load, limit in zip(loads, given, strict=True):
            for weight, part in limit.load.parts(factor):
                load += weight * _spread(part, factor.scope, sizes)
    seconds += np.maximum(uncovered, 0.0)
    for load, limit in zip(loads, given, strict=True):
        seconds[load > limit.nbytes] = np.inf
    best = np.unravel_index(int(seconds.argmin()), seconds.shape)
    if not np.isfinite(seconds[best]):
        return None
    states = tuple(map(int, best))
    least = problem.seconds(states)
    return Assignment(states, least, problem.nbytes(states), least, "brute force")


def _spread(part: Array, scope: tuple[int, ...], sizes: Sequence[int]) -> Array:
    """A table as one over all variables, of size one where it does not depend on them."""
    shape = [size if i in scope else 1 for i, size in enumerate(sizes)]
    return part.transpose(np.argsort(scope)).reshape(shape)
