"""Finds the best plan within a memory limit.

The solver counts the bytes of each decision over time (`autopar.sharding.timed`), and keeps the limit at
every time.  A finished plan's own curve (`autopar.memory`) knows more, such as which messages need a
buffer.  Where it exceeds the limit, the difference is taken off the solver's limit at those times, and
the solver answers again.  The bound is that of the first answer, under the limit alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from autopar.errors import InfeasibleError, OverLimitError
from autopar.plans.estimate import Estimate
from autopar.plans.plan import Plan
from autopar.sharding.sharding_problem import ShardingProblem
from autopar.solver import readable
from autopar.solver.gap_tolerance import ANY, FAIR
from autopar.solver.over_time import OverTime
from autopar.solver.problem import Array, Assignment

ROUNDS = 8
"""Plans that may exceed the limit before the search turns to the smallest ones."""
ABOVE = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0)
"""How much more than the least bytes the smallest plans may have, tried in turn."""
NAMED = 3
"""Tensors that an error names."""


@dataclass(frozen=True)
class WarmStart:
    """The result of a search, as a start for one with fewer microbatches in flight."""

    answer: Assignment


def within(
    posed: ShardingProblem, limit: float, known: WarmStart | None = None
) -> tuple[Plan, WarmStart]:
    """Return the best plan that fits, with a lower bound on all that may, and its answer.

    `known` is the result for more microbatches in flight: if its answer is good enough, there is no
    further search.  Raises `OverLimitError` with the peak of the smallest plan that was found.
    """
    search = _Search(posed, limit)
    search.run(known)
    if search.best is None:
        search.try_smallest()
    return search.found


def over(smallest: float, limit: float, least: float = 0.0, largest: str = "") -> OverLimitError:
    """Return the error that no plan fits; it names the smallest memory that would suffice.

    `least`: bytes that every plan needs, as far as is proved; `largest`: what takes most of them.
    """
    proved = (
        f"No plan fits {readable(limit)} per device: each needs {readable(least)} at least, and "
    )
    searched = f"No plan was found that fits {readable(limit)} per device: "
    said = proved if least > limit else searched
    return OverLimitError(
        f"{said}the smallest needs {readable(smallest, up=True)}{largest}. Use more devices, a smaller "
        "batch, or a higher limit.",
        smallest,
    )


@dataclass
class _Search:
    posed: ShardingProblem
    limit: float
    best: Plan | None = None
    answer: Assignment | None = None
    smallest: tuple[float, str] = (float("inf"), "")
    """The peak of the smallest plan that was made, and what it needs most of that for."""
    _bound: Assignment | None = field(default=None, init=False)
    _solver: OverTime = field(init=False)
    _beside: Array = field(init=False)
    """By time: what plans needed beside the solver's count, where they exceeded the limit."""

    def __post_init__(self) -> None:
        self._solver = self.posed.over_time()
        self._beside = np.zeros(self.posed.priced.problem.times)

    @property
    def found(self) -> tuple[Plan, WarmStart]:
        """The best plan, and what another search can start from."""
        assert self.best is not None and self.answer is not None
        return self.best, WarmStart(self.answer)

    def run(self, known: WarmStart | None) -> None:
        """Solve until a plan fits; what plans need beside the solver's count is taken off the limit."""
        care = self.posed.settings.care.within_limits
        for _ in range(ROUNDS):
            try:
                answer = self._solver.solve(self.limit - self._beside, care)
            except InfeasibleError:
                return
            if self._bound is None:
                self._bound = answer
                if known is not None and self._is_ended_by(known.answer):
                    return
            if self._try(answer) <= 0:
                return
            care = care.sooner

    def _is_ended_by(self, known: Assignment) -> bool:
        """Return whether the known answer fits and makes a search unnecessary.

        It does if its plan is near this problem's lower bound, or if that bound is hardly below the one
        that was proved for the known answer.
        """
        assert self._bound is not None
        if self._try(known) > 0 or self.best is None:
            return False
        bound_s = self._bound.bound_s
        is_near = self.best.objective_s <= (1.0 + FAIR.wide) * bound_s
        return is_near or bound_s * (1.0 + FAIR.wide) >= known.bound_s

    def try_smallest(self) -> None:
        """Try the plans of least memory; raise `OverLimitError` if none fits.

        They do not depend on the limit, so that a limit which this error names can be met.
        """
        smallest = self.posed.over_time()
        least = _least_nbytes(smallest)
        self._bound = self._bound or self.posed.solve()
        for more in ABOVE:
            try:
                most = np.full(self.posed.priced.problem.times, (1.0 + more) * least)
                self._try(smallest.solve(most, ANY))
                break
            except OverLimitError as error:
                least = max(least, error.least_nbytes)
            except InfeasibleError:
                continue
        if self.best is None:
            raise over(self.smallest[0], self.limit, least, self.smallest[1])

    def _try(self, answer: Assignment) -> float:
        """Return by how many bytes the plan exceeds the limit; keep the best one that does not."""
        bound = self._bound or answer
        proven = replace(answer, bound_s=bound.bound_s, proof=bound.proof, left=bound.left)
        made = self.posed.plan(proven, self.limit)
        excess = made.estimate.memory_nbytes - self.limit
        if made.estimate.memory_nbytes < self.smallest[0]:
            self.smallest = made.estimate.memory_nbytes, self._largest(answer)
        if excess > 0:
            self._count(answer, made.estimate)
        elif self.best is None or made.objective_s < self.best.objective_s:
            self.best, self.answer = made, proven
        return excess

    def _count(self, answer: Assignment, estimate: Estimate) -> None:
        """Note where a plan exceeds the limit, and by how much it exceeds the solver's count there."""
        times, levels = course(self.posed, estimate)
        counted = self.posed.priced.problem.course(answer.states, self._solver.in_flight)
        counted = np.array([counted[list(alike)].max() for alike in times])
        for alike, level, count in zip(times, levels, counted, strict=True):
            if level > self.limit:
                where = list(alike)
                self._beside[where] = np.maximum(self._beside[where], level - count)

    def _largest(self, answer: Assignment) -> str:
        """Return what takes most of the bytes of an assignment's peak, in words."""
        problem, names = self.posed.priced.problem, self.posed.priced.names
        counted = problem.course(answer.states, self._solver.in_flight)
        found = Counter[str]()
        for scope, nbytes in problem.in_use(answer.states, int(counted.argmax())):
            name = names[scope[0]] if scope[0] < len(names) else problem.variables[scope[0]].name
            node = self.posed.graph.node.get(name)
            found[name if node is None else node.path] += int(nbytes)
        said = [f"{name} ({readable(nbytes)})" for name, nbytes in found.most_common(NAMED)]
        return f", most of it for {', '.join(said)}" if said else ""


def course(posed: ShardingProblem, estimate: Estimate) -> tuple[list[tuple[int, ...]], Array]:
    """Return a plan's own memory over time, in bytes: the solver's times, and the level at each.

    An operator's backward has one level for two of the solver's times, and for those at which a block
    runs again before it.  The end of the backward has a level if it is the peak.
    """
    at = posed.intervals
    always = estimate.parameter_nbytes + estimate.gradient_nbytes + estimate.optimizer_nbytes
    always += (estimate.in_flight - 1) * estimate.activation_nbytes
    times: list[tuple[int, ...]] = []
    levels: list[int] = []
    for each in estimate.operators:
        place = at.place[each.node]
        times += [(at.forward(place),), at.backwards(place)]
        levels += [each.forward_nbytes or 0, each.backward_nbytes or 0]
    found = always + np.array(levels, dtype=float)
    if found.max(initial=0.0) < estimate.memory_nbytes:
        # The peak is at the end of the backward, where the last gradients are reduced.
        return [*times, (at.times - 1,)], np.append(found, estimate.memory_nbytes)
    return times, found


def _least_nbytes(solver: OverTime) -> float:
    """Return bytes that every assignment needs at some time, as far as multipliers prove it."""
    try:
        solver.bound_s(np.zeros(solver.problem.times))
    except OverLimitError as error:
        return error.least_nbytes
    return 0.0
