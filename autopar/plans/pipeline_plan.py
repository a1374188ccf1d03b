"""The plan of a pipeline: cuts of the graph, the stages of each worker, and the schedule.

Each stage has, for each of its workers, a `Plan` of the stage's graph on the worker's mesh.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from autopar.errors import PlanError
from autopar.ir.split import Stages
from autopar.ir.units import seconds
from autopar.pipeline.schedules import Edge, check
from autopar.plans.changes import Difference, Outline, Outlined, difference, outline_of
from autopar.plans.pipeline_changes import pipeline_outline
from autopar.plans.pipeline_data import PIPELINE_SCHEMA, PipelinePlanData
from autopar.plans.pipeline_sound import check_layout, check_pipeline_sound
from autopar.plans.plan import Plan
from autopar.utils.io import first_fault, text_of
from autopar.utils.shown import Shown


@dataclass(frozen=True)
class PipelinePlan(PipelinePlanData, Shown):
    """A pipeline plan: `PipelinePlanData` with reading, writing, checks and comparison."""

    def __repr__(self) -> str:
        """Return a one-line summary; `print` shows the tables."""
        predicted = "" if self.prediction is None else f": step {seconds(self.prediction.step_s)}"
        return (
            f"<PipelinePlan {self.digest} of {self.model} on ({self.mesh}) of {self.hardware}, "
            f"{len(self.cuts) + 1} stages, {self.actions.partition(' ')[0]}{predicted}>"
        )

    @property
    def outline(self) -> Outline:
        """The names and texts by which plans are compared."""
        return pipeline_outline(self)

    def diff(self, other: Outlined) -> Difference:
        """Return how `other`, a plan of the same model, differs in decisions and costs."""
        return difference(self.outline, outline_of(other))

    def to_json(self) -> str:
        """Return the plan as JSON text."""
        return _adapter().dump_json(self, indent=1).decode()

    @classmethod
    def from_json(cls, text: str, source: str = "plan") -> PipelinePlan:
        """Read a plan; raise `PlanError` with `source` and the first fault if it is invalid."""
        try:
            plan = _adapter().validate_json(text)
        except ValidationError as error:
            raise PlanError(
                f"{source} is not a pipeline's plan: {first_fault(error)}. "
                "Make a new one with `autopar plan --stages auto`."
            ) from None
        if plan.schema != PIPELINE_SCHEMA:
            raise PlanError(
                f"{source} has pipeline schema {plan.schema}; this autopar reads {PIPELINE_SCHEMA}. "
                "Make a new one with `autopar plan --stages auto`."
            )
        check_pipeline_sound(plan, source)
        return plan

    @classmethod
    def load(cls, path: str | Path) -> PipelinePlan:
        """Read a plan file."""
        return cls.from_json(text_of(path, "the plan"), str(path))

    def check(self, stages: Stages) -> None:
        """Raise `PlanError` or `ScheduleError` unless the plan is consistent and fits the graphs."""
        check_layout(self)
        if self.schedule.stages != len(stages.graphs):
            raise PlanError(
                f"The plan has {self.schedule.stages} stages; the graph is cut into "
                f"{len(stages.graphs)}."
            )
        check(self.schedule, edges(stages))
        for each in self.stages:
            each.plan.check(stages.graphs[each.stage])


def predicted_step_s(plan: Plan | PipelinePlan) -> float:
    """Return the predicted seconds of a step."""
    if isinstance(plan, Plan):
        return plan.estimate.step_s
    assert plan.prediction is not None
    return plan.prediction.step_s


def edges(stages: Stages) -> tuple[Edge, ...]:
    """Return the edges between stages, and whether gradients are sent back along them."""
    found: dict[tuple[int, int], bool] = {}
    for crossing in stages.crossings:
        pair = (crossing.source, crossing.target)
        found[pair] = found.get(pair, False) or crossing.returns
    return tuple(Edge(*pair, gradient) for pair, gradient in sorted(found.items()))


@cache
def _adapter() -> TypeAdapter[PipelinePlan]:
    """Return the type adapter; built on first use, since this is slow."""
    return TypeAdapter(PipelinePlan)
