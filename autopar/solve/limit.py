"""A limit on bytes by a Lagrange multiplier.

For a price m >= 0 per byte,  g(m) = min_x seconds(x) + m * (bytes(x) - limit)  is a lower bound on
every assignment within the limit (weak duality).  g is concave; bisection on m finds its maximum and,
on the feasible side, an assignment within the limit.  The gap between the two is reported.
"""

from __future__ import annotations

from autopar.errors import InfeasibleError
from autopar.problem import Assignment, Problem
from autopar.solve.elimination import eliminate

ROUNDS = 24
STEEPEST = 1.0
"""Seconds per byte at which nothing but memory counts."""


def within(problem: Problem, limit: float | None) -> Assignment:
    """The best assignment found within `limit` bytes, with its bound; exact where none binds."""
    free = eliminate(problem)
    if limit is None or free.nbytes <= limit:
        return free
    tightest = eliminate(problem, STEEPEST)
    if tightest.nbytes > limit:
        raise InfeasibleError(
            f"No plan fits {_readable(limit)} per device: the smallest needs "
            f"{_readable(tightest.nbytes)}. Use more devices, a smaller batch, or a higher limit."
        )
    best, bound = tightest, free.seconds
    low, high = 0.0, STEEPEST
    for _ in range(ROUNDS):
        price = (low * high) ** 0.5 if low else high / 1e3
        answer = eliminate(problem, price)
        bound = max(bound, answer.bound_s - price * limit)
        if answer.nbytes <= limit:
            high = price
            best = min(best, answer, key=lambda found: found.seconds)
        else:
            low = price
    return Assignment(best.states, best.seconds, best.nbytes, min(bound, best.seconds))


def _readable(nbytes: float) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes:.0f} bytes"
