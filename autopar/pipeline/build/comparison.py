"""Compares pipelines and a plan without stages by predicted step; the shortest wins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from autopar.errors import InfeasibleError
from autopar.ir.mesh import Mesh
from autopar.pipeline.build.single_stage import SingleStagePlanner
from autopar.pipeline.build.stage_tables import ModelStageTable
from autopar.pipeline.build.staged import Staged
from autopar.pipeline.planner import (
    InterleavedPlan,
    Planner,
    StagePlan,
    StageProblem,
    VSchedulePlan,
    interleaved,
    interleavings,
    vees,
)
from autopar.pipeline.planner.v_schedule import NAME
from autopar.plans.pipeline_data import Compared
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.record import View
from autopar.sharding.sharding_problem import Compilation
from autopar.utils.processes import Aside
from cost_models.hardware import Hardware

BEHIND = 1.25
"""Multiple of the best known step: candidates whose step in the table is longer are not compiled."""
FURTHER = 1.1
"""The same for candidates with one stage per worker, once another candidate has been compiled.  It
does not apply to V schedules: their table charges the slowest link for every message, of which they
have twice as many."""
NEAR = 1.05
"""Multiple of the best known step: if no plan of the table can be faster, none is searched for.  The
factor is above 1 because stages that are solved separately may be slightly faster than in the
table."""
WORTH = 1.05
"""Required predicted speedup of stages over a plan without, if the profile does not model how ranks
wait for each other at every message.  Measured on two ranks of one machine, with equal predictions:
stages took 6 % longer than the plan without stages, and 23 to 40 % longer alternating with other
programs."""


def worth_of(hardware: Hardware) -> float:
    """Return the required speedup of stages over a plan without, for a profile as seen on full hosts."""
    knows_waiting = hardware.device.behind > 0 or hardware.device.late_s > 0
    return 1.0 if knows_waiting else WORTH


class NoneOfSeveralError(InfeasibleError):
    """No pipeline with several stages on each of equal workers exists, or none fits."""


@dataclass(frozen=True)
class Chosen:
    """The winner: a pipeline (perhaps of one stage), or a plan without microbatches."""

    staged: Staged | None
    plain: Compilation | None
    compared: tuple[Compared, ...]


@dataclass(frozen=True)
class Candidate:
    """A pipeline found in a table: its step there, its description, and a function that compiles it.

    `most_stages` is that of its problem; None: no limit.  Once another pipeline has been compiled,
    this one is compiled only if its step is at most `behind` times the best.
    """

    step_s: float
    says: str
    made: Callable[[], Staged]
    most_stages: int | None = None
    behind: float = BEHIND


class PlanComparison:
    """The best compiled pipeline so far, and the steps of all plans compared."""

    def __init__(self, alone: SingleStagePlanner | None, worth: float) -> None:
        """`alone` plans without stages (None: do not try); stages must be `worth` times as fast."""
        self._alone, self._worth = alone, worth
        self._at_last: Compilation | None = None
        self._refused: list[InfeasibleError] = []
        self._best: Staged | None = None
        self._entered: set[str] = set()
        self.compared: list[Compared] = []

    @cached_property
    def _soon(self) -> Compilation | None:
        found = self._alone.soon() if self._alone else None
        if self._alone and not found:
            self._alone.look_ahead()  # while the planner may still be busy
        return found

    @property
    def _plain(self) -> Compilation | None:
        """The plan without stages, if the quick or the full search has found one."""
        return self._at_last or self._soon

    def _to_beat(self, stages: int | None) -> float:
        """Return the step that a plan of at most this many stages (None: any number) has to beat."""
        plain = math.inf if self._plain is None else self._plain.plan.estimate.step_s
        plain /= 1.0 if stages == 1 else self._worth
        return plain if self._best is None else min(plain, _step(self._best))

    def planned(
        self, tabled: ModelStageTable, problem: StageProblem, made: Callable[[StagePlan], Staged]
    ) -> list[Candidate]:
        """Return the planner's choice, or nothing if no plan of its table can come near the best."""
        planner = Planner(problem)
        try:
            with Aside(planner.plan) as planned:
                if self._is_hopeless(planner):
                    return []
                plan = planned.result()
        except InfeasibleError as error:
            self._refused.append(error)
            return []
        meshes = [tabled.decided[stage.way].mesh for stage in plan.stages]
        says = _words(plan.schedule, plan.microbatches, meshes)
        behind = BEHIND if problem.most_stages == 1 else FURTHER
        return [Candidate(plan.step_s, says, partial(made, plan), problem.most_stages, behind)]

    def vees(
        self, tabled: ModelStageTable, made: Callable[[VSchedulePlan], Staged]
    ) -> list[Candidate]:
        """Return the best V schedule of a table for each number of workers."""
        found = vees(tabled.problem, BEHIND * self._to_beat(None))
        if not found:
            self._refused.append(
                NoneOfSeveralError("no V of equal workers with two stages each fits")
            )
        return [
            Candidate(
                vee.step_s,
                _words(NAME, vee.microbatches, [tabled.decided[vee.way].mesh] * vee.workers),
                partial(made, vee),
            )
            for vee in found
        ]

    def interleavings(
        self, tabled: ModelStageTable, made: Callable[[InterleavedPlan], Staged], below: float
    ) -> list[Candidate]:
        """Return the best interleaved pipeline of a table for each number of workers.

        `below` is the shortest step of the other candidates, by the table.
        """
        below = min(BEHIND * self._to_beat(None), FURTHER * below)
        found = interleavings(tabled.problem, below)
        if not found:
            self._refused.append(
                NoneOfSeveralError(
                    "no interleaved pipeline of equal workers fits, or is near the best"
                )
            )
        return [
            Candidate(
                each.step_s,
                _words(
                    interleaved.NAME,
                    each.microbatches,
                    [tabled.decided[each.way].mesh] * each.workers,
                ),
                partial(made, each),
                behind=FURTHER,
            )
            for each in found
        ]

    def _is_hopeless(self, planner: Planner) -> bool:
        """Return whether no plan of the table can come near the best known step."""
        near = NEAR * self._to_beat(planner.problem.most_stages)
        if near == math.inf or not planner.is_hopeless(near):
            return False
        self.compared.append(Compared(_bounded(planner.problem), near))
        return True

    def enter(self, candidates: Sequence[Candidate]) -> None:
        """Compile the candidates that are near the best known step, the shortest step first."""
        for each in sorted(candidates, key=lambda candidate: candidate.step_s):
            if each.says in self._entered:
                continue
            if each.step_s > self._limit(each):
                self.compared.append(Compared(f"{each.says}, estimated", each.step_s))
                continue
            try:
                staged = each.made()
            except InfeasibleError as error:
                self._refused.append(error)
                continue
            self._entered.add(each.says)
            self.compared.append(Compared(_named(staged.plan), _step(staged)))
            if self._best is None or _step(staged) < _step(self._best):
                self._best = staged

    def _limit(self, candidate: Candidate) -> float:
        """Return the step in the table above which a candidate is not compiled."""
        behind = BEHIND if self._best is None else candidate.behind
        return behind * self._to_beat(candidate.most_stages)

    def enter_alone(self, mesh: Mesh) -> None:
        """Run the full search for a plan without stages, unless its bound shows that it cannot win."""
        name = f"no stages on {mesh}"
        if self._plain is None and self._alone is not None:
            self._at_last = self._alone.after_all(self._worth * self._to_beat(1))
            if self._plain is None and self._best is not None:
                name += ", near the best"
        step = None if self._plain is None else self._plain.plan.estimate.step_s
        self.compared.append(Compared(name, step))

    def winner(self) -> Chosen:
        """Return the better of the best pipeline and the plan without stages.

        Raises `InfeasibleError` if there is neither.
        """
        compared, plain = tuple(self.compared), self._plain
        if self._best is None and plain is None:
            raise min(self._refused, key=lambda error: isinstance(error, NoneOfSeveralError))
        if self._best is None or (plain and self._is_as_good(plain, self._best)):
            assert plain is not None
            views = tuple(
                View(self._passed_over(each, plain), each.step_s) for each in compared[:-1]
            )
            return Chosen(None, replace(plain, plan=replace(plain.plan, views=views)), compared)
        assert self._best.plan.prediction is not None
        prediction = replace(self._best.plan.prediction, compared=compared)
        plan = replace(self._best.plan, prediction=prediction)
        return Chosen(replace(self._best, plan=plan), None, compared)

    def _is_as_good(self, plain: Compilation, staged: Staged) -> bool:
        """Return whether the plan without stages is preferred."""
        worth = self._worth if staged.plan.schedule.stages > 1 else 1.0
        return plain.plan.estimate.step_s <= worth * _step(staged)

    def _passed_over(self, other: Compared, plain: Compilation) -> str:
        """Return the description of a loser, with the reason if its step is shorter."""
        if other.step_s is None or other.step_s >= plain.plan.estimate.step_s:
            return other.what
        return f"{other.what} (stages are chosen only if they are {self._worth} times as fast)"


def _step(staged: Staged) -> float:
    assert staged.plan.prediction is not None
    return staged.plan.prediction.step_s


def _named(plan: PipelinePlan) -> str:
    return _words(plan.schedule.name, plan.microbatches, [worker.mesh for worker in plan.workers])


def _bounded(problem: StageProblem) -> str:
    stages = "one stage in microbatches" if problem.most_stages == 1 else "stages"
    return f"{stages}, at least (lower bound of all estimated plans)"


def _words(schedule: str, microbatches: int, meshes: Iterable[Mesh]) -> str:
    sizes = "+".join("x".join(map(str, mesh.sizes)) for mesh in meshes)
    return f"{schedule} of {microbatches} microbatches on {sizes}"
