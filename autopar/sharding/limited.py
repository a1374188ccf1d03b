"""The best plan within a limit on memory.

The solver counts what rests and what is kept.  What is alive besides, at the highest point of a step,
is known of a finished plan only, but for the least of it.  So the solver is given a budget, and the
budget is sought: the largest whose plan fits.  Where that leaves much to be gained,
operators that need much besides are forbidden, step by step: then their part of the limit is free.
(A tensor that is kept in two forms is counted once by the solver, and twice by a plan: so even then a
budget may have to shrink.)
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
"""A gap that is worth solving other problems."""
LEVELS = 6


@dataclass(frozen=True)
class WarmStart:
    """What a search found, for one with fewer microbatches in flight.

    `calm`: the bytes beside which more was forbidden to advantage; None: that was not tried.
    """

    answer: Assignment
    calm: tuple[float, ...] | None = None


def within(
    posed: ShardingProblem, simpler: ShardingProblem, limit: float, known: WarmStart | None = None
) -> tuple[Plan, WarmStart]:
    """The best plan of `posed` that was found to fit, with the bound of all that might, and its answer.

    `simpler` poses the same without recomputation; its answers are tried where that helps.  `known`
    is of more microbatches in flight: where its answer is good enough nothing else is looked for, and
    what was forbidden in vain there is allowed here.
    Raises `OverLimitError` with the smallest memory that was found to be enough.
    """
    search = _Search(posed, limit, calm=None if known is None else known.calm)
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
    """No plan fits; the least that would do is part of what is said."""
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
    calm: tuple[float, ...] | None = None
    """The only levels worth a trial, where that is known."""
    _bound: Assignment | None = field(default=None, init=False)
    _helpful: list[float] | None = field(default=None, init=False)
    _answers: dict[object, Assignment] = field(default_factory=dict, init=False)
    _counted: float | None = field(init=False)
    """The bytes, as the solver counts them, of which the bound speaks."""

    def __post_init__(self) -> None:
        self._counted = self.limit - self.posed.priced.least_working

    @property
    def found(self) -> tuple[Plan, WarmStart]:
        """The best plan, and what another search can use."""
        assert self.best is not None and self.answer is not None
        calm = self.calm if self._helpful is None else tuple(dict.fromkeys(self._helpful))
        return self.best, WarmStart(self.answer, calm)

    def is_ended_by(self, known: Assignment) -> bool:
        """Whether no search is worth while beside what fits already: it is good, or what was proved of
        it then says nearly the same of this."""
        try:
            self._try(self.posed, self._solved(self.posed, self._counted))
            self._try(self.posed, known)
        except OverLimitError:
            # As the solver counts, nothing fits: whatever helps is worth a trial.
            self.calm = None
        if self.best is None or self._bound is None:
            return False
        return self.is_within(FAIR.wide) or self._bound.bound_s * (1.0 + FAIR.wide) >= known.bound_s

    @property
    def is_near(self) -> bool:
        """Whether what was found is so good that another search is not worth while."""
        return self.is_within(self.posed.settings.care.wide)

    def is_within(self, gap: float) -> bool:
        """Whether what was found is, relative to the bound, as good as that."""
        if self.best is None or self._bound is None:
            return False
        return self.best.objective_s <= (1.0 + gap) * self._bound.bound_s

    def _is_as_fast_as(self, seconds: float) -> bool:
        """Whether what was found takes hardly longer."""
        assert self.best is not None
        return self.best.objective_s <= (1.0 + self.posed.settings.care.wide) * seconds

    def _solved(
        self, posed: ShardingProblem, nbytes: float | None, branches: bool | None = None
    ) -> Assignment:
        """The solver's answer, which may be asked for twice.

        It branches where its bound is the one of all plans; elsewhere answers alone count.
        """
        branches = nbytes == self._counted if branches is None else branches
        key = id(posed), nbytes, branches
        if key not in self._answers:
            self._answers[key] = posed.solve(nbytes, branches)
        return self._answers[key]

    def descend(self, posed: ShardingProblem) -> None:
        """Less and less, in growing steps, until a plan fits; then between too much and enough, while
        what does not fit is much faster."""
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
        """Forbid what needs much besides, from much to little, and give the solver all the rest."""
        self._helpful = self._helpful or []
        for most in self._levels(posed):
            before, budget = self.best, self.limit - most
            calm = replace(posed, priced=posed.priced.calm(most))
            with suppress(InfeasibleError):
                answer = calm.solve(budget, branches=False)
                while self._is_hopeful(answer) and (excess := self._try(calm, answer)) > 0:
                    budget -= excess
                    answer = calm.solve(budget, branches=False)
            if self.best is not before:
                self._helpful.append(most)

    def _is_hopeful(self, answer: Assignment) -> bool:
        """Whether something as small as that, or smaller, may be faster than what fits already."""
        return self.best is None or answer.bound_s < self.best.objective_s

    def _levels(self, posed: ShardingProblem) -> Sequence[float]:
        """From the least that some operator needs beside what is kept to nearly the limit."""
        if self.calm is not None:
            return [most for most in self.calm if posed.priced.least_working <= most < self.limit]
        unique = {id(nbytes): nbytes for nbytes in posed.priced.working.values()}.values()
        needs = np.unique(np.concatenate([np.zeros(1), *unique]))
        levels = needs[(needs >= posed.priced.least_working) & (needs < self.limit)]
        places = np.linspace(0, len(levels) - 1, min(LEVELS, len(levels))).astype(int)
        return [float(most) for most in levels[places]]

    def try_hulls(self, posed: Sequence[ShardingProblem]) -> None:
        """Whatever it costs.  The solver may count more bytes than a plan needs, so its count is no
        limit here, and the bound is that of all plans."""
        self._bound, self._counted = self.posed.solve(), None
        for each in posed:
            for answer in hull(each.priced.problem):
                self._try(each, answer)

    def _try(self, posed: ShardingProblem, answer: Assignment) -> float:
        """Bytes by which the plan exceeds the limit; the best that does not is kept."""
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
        """An answer of a simpler problem as one of this: nothing is recomputed."""
        if posed.priced.names == self.posed.priced.names:
            return answer
        decisions = posed.priced.decisions(answer)
        return self.posed.answer(replace(decisions, recompute=self.posed.nothing_again))
