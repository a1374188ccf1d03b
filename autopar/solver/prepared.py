"""The best assignment of a problem, within limits, and a proof of how good it is.

Dominated states go first, then an order of elimination is found; both serve any limits.  Multipliers
give a bound and a good assignment (`dual`).  Where a gap is left, states whose best assignment at these
multipliers costs more than what is known already are dropped (reduced-cost fixing), and the rest is
searched with Pareto sets: the answer is then optimal, or keeps the bound that it has.  A gap that is
still wide is branched on (`branch`).  Where tables had to be minimised in parts and leave a wide gap, a
search over assignments (`searched`) and, on small problems, an integer program have their say as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

from autopar.errors import InfeasibleError, PlanError
from autopar.solver.branch import branched
from autopar.solver.closing import closed
from autopar.solver.dominance import Reduced, reduced
from autopar.solver.dual import Found, Point, best_within
from autopar.solver.gap_tolerance import THOROUGH, GapTolerance
from autopar.solver.network import Network
from autopar.solver.order import Order, ordered
from autopar.solver.problem import Assignment, Limits, Problem, Proof, limits_of, loads_of
from autopar.solver.rows import Goal
from autopar.solver.searched import searched

MOST_ENTRIES = 1 << 17
"""Entries of all tables of a problem that is worth an integer program: one of 865,000 took minutes."""
MOST_SEARCHED = 1 << 20
"""Entries of all tables of a problem with an answer that is searched for a better one: with 865,000 it
took ten seconds."""
PROGRAM_NODES = 500
"""How far the integer program branches: work is counted, as time would make plans differ."""


def solve(problem: Problem, limits: Limits = None) -> Assignment:
    """The best assignment, within the limits where some are given, with a proven lower bound.

    Raises `InfeasibleError` where nothing is allowed, or nothing fits: it names the least that would.
    """
    return PreparedProblem.of(problem, limits).solve(limits)


@dataclass(frozen=True, eq=False)
class PreparedProblem:
    """A problem without dominated states: what several limits have in common is done once."""

    problem: Problem
    left: Reduced

    @classmethod
    def of(cls, problem: Problem, limits: Limits = None) -> PreparedProblem:
        """Count ticks, drop what is dominated.

        Where one of the limits has a time, it serves limits with the same times only.
        """
        return cls(problem, reduced(Network.of(problem, loads_of(limits))))

    @cached_property
    def order(self) -> Order:
        """In which variables are eliminated, whatever bytes cost."""
        return ordered(self.left.network)

    def solve(
        self, limits: Limits = None, branches: bool = True, care: GapTolerance = THOROUGH
    ) -> Assignment:
        """See `solve`; without `branches`, sooner, and where a limit binds perhaps less good."""
        goal = Goal.of(self.left.network, limits_of(limits))
        found = best_within(self.order, goal)
        if not self.order.is_exact:
            return self._helped(found, limits, care)
        proof: Proof = "elimination" if _is_plain(goal, found) else "lagrange"
        if found.best is None or care.close < found.gap <= care.far:
            found = closed(goal, found, care)
            proof = "pareto" if found.gap == 0.0 else proof
        if found.best is None or (branches and found.gap > care.wide):
            found = branched(goal, found, care)
        return self._answer(found, proof)

    def bound_s(self, limits: Limits = None) -> float:
        """What no assignment within the limits undercuts, by multipliers alone: sooner than `solve`.

        Raises `InfeasibleError` where nothing fits."""
        goal = Goal.of(self.left.network, limits_of(limits))
        return best_within(self.order, goal).bound * self.left.network.tick_s

    def _answer(self, found: Found, proof: Proof) -> Assignment:
        if found.best is None:
            raise InfeasibleError(
                "Each limit can be met, but no assignment was found that meets all. Raise one of them."
            )
        return self.answer(found.best, found.bound, proof)

    def _helped(self, found: Found, limits: Limits, care: GapTolerance) -> Assignment:
        """The best answer and the highest bound of mini-buckets and, while these are apart, of a search
        and of an integer program."""
        mine = None if found.best is None else self.answer(found.best, found.bound, "mini-buckets")
        if mine is not None and found.gap <= care.wide:
            return mine
        mine = better_of(mine, self._searched(found, limits))
        if mine is not None and mine.seconds - mine.bound_s <= care.wide * abs(mine.seconds):
            return mine
        if sum(table.seconds.size for table in self.problem.tables) > MOST_ENTRIES:
            return mine or refuse_too_large()
        # OR-Tools' modelling layer takes a quarter of a second to load, and is seldom needed.
        from autopar.solver.ilp import solve_ilp

        try:
            other = solve_ilp(self.problem, limits, PROGRAM_NODES)
        except PlanError:
            return mine or refuse_too_large()
        except InfeasibleError:
            if mine is None:
                raise
            return mine
        return better_of(mine, other) or other

    def _searched(self, found: Found, limits: Limits) -> Assignment | None:
        """What the search finds, with uncovered seconds at the price of their row, which comes last.

        Very large problems are searched only if there is no answer yet.
        """
        entries = sum(table.seconds.size for table in self.problem.tables)
        if found.best is not None and entries > MOST_SEARCHED:
            return None
        return searched(
            self.problem, limits, found.multipliers[-1] if self.left.network.hides else 0.0
        )

    def answer(self, best: Point, bound: float, proof: Proof) -> Assignment:
        """A point and a bound of the network in terms of the problem."""
        whole = self.left.whole(best.states)
        seconds, nbytes = self.problem.seconds(whole), self.problem.nbytes(whole)
        bound_s = min(seconds, bound * self.left.network.tick_s)
        sizes = self.left.network.sizes
        return Assignment(whole, seconds, nbytes, bound_s, proof, (len(sizes), sum(sizes)))


def better_of(one: Assignment | None, other: Assignment | None) -> Assignment | None:
    """The cheaper of two answers to one problem, with the higher bound; `left` is the first one's."""
    if one is None or other is None:
        return one or other
    best = min(one, other, key=lambda answer: answer.seconds)
    proven = max(one, other, key=lambda answer: answer.bound_s)
    bound_s = min(best.seconds, proven.bound_s)
    return Assignment(best.states, best.seconds, best.nbytes, bound_s, proven.proof, one.left)


def refuse_too_large() -> NoReturn:
    """Mini-buckets gave a bound, but no assignment."""
    raise InfeasibleError(
        "The tables of this problem are too large, and no allowed assignment was found without "
        "them. Constrain some tensors, or use fewer mesh axes."
    )


def _is_plain(goal: Goal, found: Found) -> bool:
    """Whether the answer is the optimum of one elimination: no limit binds, all or nothing hides."""
    at_ends = all(
        m == 0.0 or (m == row.dearest and not row.is_limit)
        for m, row in zip(found.multipliers, goal.rows, strict=True)
    )
    return at_ends and found.cost - found.bound <= len(found.elimination.order.network.tables)
