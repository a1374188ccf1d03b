"""Describes how close to optimal a solution is proved to be."""

from __future__ import annotations

from autopar.ir.units import seconds
from autopar.solver.problem import Proof

WORDS: dict[Proof, str] = {
    "elimination": "by elimination",
    "mini-buckets": "by mini-buckets",
    "lagrange": "by Lagrange's bound",
    "pareto": "by Pareto sets",
    "hull": "for its memory, by the convex hull",
    "lp": "by linear programming",
    "branch": "by branch and bound",
    "brute force": "by brute force",
}


OPTIMAL = 1e-6
"""Relative gaps below this count as zero: solvers count in whole picoseconds."""


def proof(cost_s: float, bound_s: float, by: Proof) -> str:
    """Describe how far a cost can be from the optimum at most, and the method that proves it."""
    if by == "none":
        return "no bound is known"
    if bound_s - cost_s > OPTIMAL * abs(cost_s):
        return f"below its bound of {seconds(bound_s)}, which cannot be: see `autopar verify`"
    gap = max(0.0, cost_s - bound_s)
    if gap <= OPTIMAL * abs(cost_s):
        return f"optimal ({WORDS[by]})"
    if cost_s == 0:
        return f"within {gap:g} s of optimal ({WORDS[by]})"
    return f"within {max(gap / abs(cost_s), 1e-4):.2%} of optimal ({WORDS[by]})"


def of_table(bound_s: float | None) -> str:
    """Return the stage planner's lower bound as text; stages that the user chose have none."""
    if bound_s is None:
        return "no bound is known"
    return f"no plan of the planner's table takes less than {seconds(bound_s)} (relaxation)"


def gap(cost_s: float, bound_s: float, by: Proof) -> str:
    """Return the same in one word, for tables."""
    words = proof(cost_s, bound_s, by).split(" (")[0]
    return {"no bound is known": "unknown"}.get(
        words, words.removeprefix("within ").removesuffix(" of optimal")
    )
