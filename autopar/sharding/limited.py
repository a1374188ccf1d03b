"""Finds the best plan within a memory limit.

The solver counts memory at rest and what the backward keeps.  The working set, which is alive at a
step's peak in addition, is known only of a finished plan, apart from a lower bound.  So the solver gets
a budget of bytes, and the search looks for the largest budget whose plan fits.  If a large gap to the
lower bound is left, operators with a large working set are forbidden, step by step, which frees their
part of the limit.  (The solver counts a tensor that is kept in two shardings once, and a plan counts it
twice, so even then a budget may have to shrink.)
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from autopar.errors import InfeasibleError, OverLimitError
from autopar.plans.plan import Plan
from autopar.sharding.sharding_problem import ShardingProblem
from autopar.solver import hull, readable
from autopar.solver.gap_tolerance import FAIR
from autopar.solver.problem import Assignment

BISECTIONS = 4
FAR = 2e-2
"""The gap beyond which problems with forbidden operators are worth solving."""
LEVELS = 6


@dataclass(frozen=True)
class WarmStart:
    """The result of a search, as a start for one with fewer microbatches in flight.

    `working_limits`: limits on the working set, in bytes, that improved the plan; None: none was tried.
    """

    answer: Assignment
    working_limits: tuple[float, ...] | None = None


def within(
    posed: ShardingProblem, simpler: ShardingProblem, limit: float, known: WarmStart | None = None
) -> tuple[Plan, WarmStart]:
    """Return the best plan of `posed` that fits, with a lower bound on all that may, and its answer.

    `simpler` is the same problem without recomputation; its answers are tried where that helps.
    `known` is the result for more microbatches in flight: if its answer is good enough there is no
    search, and limits on the working set that did not help there are not tried here.
    Raises `OverLimitError` with the smallest peak memory of all plans that were tried.
    """
    search = _Search(posed, limit, working_limits=None if known is None else known.working_limits)
    either = (posed,) if simpler is posed else (posed, simpler)
    if known is not None and search.is_ended_by(known.answer):
        return search.found
    for each in either:
        if not search.is_near:
            search.descend(each)
    for each in either:
        if not search.is_within(FAR):
            search.forbid_memory_hungry_ops(each)
    if search.best is None:
        search.try_hulls(either)
    if search.best is None:
        raise over(search.smallest, limit)
    return search.found


def over(smallest: float, limit: float) -> OverLimitError:
    """Return the error that no plan fits; it names the smallest memory that would suffice."""
    return OverLimitError(
        f"No plan was found that fits {readable(limit)} per device: the smallest needs "
        f"{readable(smallest, up=True)}. Use more devices, a smaller batch, or a higher limit.",
        smallest,
    )


@dataclass
class _Search:
    posed: ShardingProblem
    limit: float
    best: Plan | None = None
    answer: Assignment | None = None
    smallest: float = float("inf")
    working_limits: tuple[float, ...] | None = None
    """The only limits on the working set that are worth a trial, if that is known."""
    _bound: Assignment | None = field(default=None, init=False)
    _helpful: list[float] | None = field(default=None, init=False)
    _answers: dict[object, Assignment] = field(default_factory=dict, init=False)
    _counted: float | None = field(init=False)
    """The limit on the bytes that the solver counts for which the bound holds; None: no limit."""

    def __post_init__(self) -> None:
        self._counted = self.limit - self.posed.priced.least_working

    @property
    def found(self) -> tuple[Plan, WarmStart]:
        """The best plan, and what another search can start from."""
        assert self.best is not None and self.answer is not None
        working_limits = (
            self.working_limits if self._helpful is None else tuple(dict.fromkeys(self._helpful))
        )
        return self.best, WarmStart(self.answer, working_limits)

    def is_ended_by(self, known: Assignment) -> bool:
        """Return whether the known answer fits and makes a search unnecessary.

        It does if its plan is near this problem's lower bound, or if that bound is hardly below the one
        that was proved for the known answer.
        """
        try:
            self._try(self.posed, self._solved(self.posed, self._counted))
            self._try(self.posed, known)
        except OverLimitError:
            # Nothing fits as the solver counts, so every limit on the working set is worth a trial.
            self.working_limits = None
        if self.best is None or self._bound is None:
            return False
        return self.is_within(FAIR.wide) or self._bound.bound_s * (1.0 + FAIR.wide) >= known.bound_s

    @property
    def is_near(self) -> bool:
        """Whether the best plan is so near the bound that another search is not worthwhile."""
        return self.is_within(self.posed.settings.care.wide)

    def is_within(self, gap: float) -> bool:
        """Return whether the best plan is within this gap of the bound, relative to the bound."""
        if self.best is None or self._bound is None:
            return False
        return self.best.objective_s <= (1.0 + gap) * self._bound.bound_s

    def _is_as_fast_as(self, seconds: float) -> bool:
        """Return whether the best plan takes hardly longer than so many seconds."""
        assert self.best is not None
        return self.best.objective_s <= (1.0 + self.posed.settings.care.wide) * seconds

    def _solved(
        self, posed: ShardingProblem, nbytes: float | None, branches: bool | None = None
    ) -> Assignment:
        """Return the solver's answer, from a cache if it was computed before.

        By default it branches only if its bound is that of all plans; else only the answer matters.
        """
        branches = nbytes == self._counted if branches is None else branches
        key = id(posed), nbytes, branches
        if key not in self._answers:
            self._answers[key] = posed.solve(nbytes, branches)
        return self._answers[key]

    def descend(self, posed: ShardingProblem) -> None:
        """Reduce the budget in growing steps until a plan fits, then bisect.

        Bisection ends early if the plan is hardly slower than the answer that does not fit.
        """
        too_much = budget = self.limit - posed.priced.least_working
        step, beyond_s = 1.0, 0.0
        try:
            while (excess := self._try(posed, answer := self._solved(posed, budget))) > 0:
                too_much, budget, step = budget, budget - step * excess, 2.0 * step
                beyond_s = answer.seconds
        except OverLimitError as error:
            budget = error.least_nbytes
            if budget > too_much or self._try(posed, self._solved(posed, budget)) > 0:
                return
        for _ in range(BISECTIONS):
            if self.is_near or budget == too_much or self._is_as_fast_as(beyond_s):
                return
            middle = (budget + too_much) / 2
            answer = self._solved(posed, middle)
            if self._try(posed, answer) > 0:
                too_much, beyond_s = middle, answer.seconds
            else:
                budget = middle
        self._try(posed, self._solved(posed, budget, branches=True))

    def forbid_memory_hungry_ops(self, posed: ShardingProblem) -> None:
        """Limit the working set, the strictest limit first, and give the solver the remaining bytes."""
        self._helpful = self._helpful or []
        for most in self._levels(posed):
            before, budget = self.best, self.limit - most
            limited = replace(posed, priced=posed.priced.limit_working(most))
            with suppress(InfeasibleError):
                answer = limited.solve(budget, branches=False)
                while self._is_hopeful(answer) and (excess := self._try(limited, answer)) > 0:
                    budget -= excess
                    answer = limited.solve(budget, branches=False)
            if self.best is not before:
                self._helpful.append(most)

    def _is_hopeful(self, answer: Assignment) -> bool:
        """Return whether an answer within these bytes may be faster than the best plan that fits."""
        return self.best is None or answer.bound_s < self.best.objective_s

    def _levels(self, posed: ShardingProblem) -> Sequence[float]:
        """Return limits on the working set, from the least that a plan needs to nearly all memory."""
        if self.working_limits is not None:
            return [
                most
                for most in self.working_limits
                if posed.priced.least_working <= most < self.limit
            ]
        unique = {id(nbytes): nbytes for nbytes in posed.priced.working.values()}.values()
        needs = np.unique(np.concatenate([np.zeros(1), *unique]))
        levels = needs[(needs >= posed.priced.least_working) & (needs < self.limit)]
        places = np.linspace(0, len(levels) - 1, min(LEVELS, len(levels))).astype(int)
        return [float(most) for most in levels[places]]

    def try_hulls(self, posed: Sequence[ShardingProblem]) -> None:
        """Try the corners of the convex hulls, however slow they are.

        The solver may count more bytes than a plan needs, so its count is no limit here, and the bound
        is that of all plans without a limit.
        """
        self._bound, self._counted = self.posed.solve(), None
        for each in posed:
            for answer in hull(each.priced.problem):
                self._try(each, answer)

    def _try(self, posed: ShardingProblem, answer: Assignment) -> float:
        """Return by how many bytes the plan exceeds the limit; keep the best one that does not."""
        mine = self._here(posed, answer)
        if self._bound is None:
            self._bound = mine
        bound = self._bound
        proven = replace(mine, bound_s=bound.bound_s, proof=bound.proof, left=bound.left)
        made = self.posed.plan(proven, self._counted)
        nbytes = made.estimate.memory_nbytes
        self.smallest = min(self.smallest, nbytes)
        if nbytes <= self.limit and (self.best is None or made.objective_s < self.best.objective_s):
            self.best, self.answer = made, proven
        return nbytes - self.limit

    def _here(self, posed: ShardingProblem, answer: Assignment) -> Assignment:
        """Return an answer of the simpler problem as one of this problem: no block is recomputed."""
        if posed.priced.names == self.posed.priced.names:
            return answer
        decisions = posed.priced.decisions(answer)
        return self.posed.answer(replace(decisions, recompute=self.posed.nothing_again))
