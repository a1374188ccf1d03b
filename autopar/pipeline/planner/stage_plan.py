"""The planner's result: stages, microbatches, schedule, step time and lower bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from pydantic import ConfigDict, TypeAdapter, ValidationError

from autopar.errors import PlanError
from autopar.utils.io import first_fault

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True)
class PlannedStage:
    """Layer range [start, end) on `nodes` x `devices`; seconds per microbatch, bytes per device."""

    __pydantic_config__ = STRICT
    start: int
    end: int
    nodes: int
    devices: int
    way: str
    forward_s: float
    input_grad_s: float
    weight_grad_s: float
    in_flight: int
    nbytes: float


@dataclass(frozen=True)
class StagePlan:
    """A planned pipeline; `step_s` is from the objective (the simulator), `estimate_s` from the search.

    `bound_s` is a lower bound on the step of every plan of the problem.  Its `proof` is "relaxation"
    (of every table and family), or "none" if the objective is not the simulator.
    """

    __pydantic_config__ = STRICT
    schedule: str
    microbatches: int
    stages: tuple[PlannedStage, ...]
    step_s: float
    estimate_s: float
    bound_s: float
    proof: str = "relaxation"

    @property
    def gap(self) -> float:
        """The relative gap between the step and its lower bound."""
        return self.step_s / self.bound_s - 1 if self.bound_s else 0.0

    def check(self) -> Self:
        """Return the plan; raise `PlanError` if stages leave gaps or figures are inconsistent."""
        if not self.stages or self.microbatches < 1:
            raise PlanError("a plan has at least one stage and one microbatch")
        at = 0
        for index, stage in enumerate(self.stages):
            if stage.start != at or stage.end <= at:
                raise PlanError(f"stage {index} is [{stage.start}, {stage.end}) but begins at {at}")
            at = stage.end
        if not 0 <= self.bound_s <= self.step_s * (1 + 1e-9):
            raise PlanError(f"a step of {self.step_s} s below its own bound, {self.bound_s} s")
        return self

    def __str__(self) -> str:
        head = (
            f"{len(self.stages)} stages, {self.schedule}, {self.microbatches} microbatches: "
            f"{self.step_s:.6g} s a step, no plan below {self.bound_s:.6g} s ({self.gap:.2%})"
        )
        lines = [
            f"  [{s.start}:{s.end})  {s.nodes}x{s.devices}  {s.way}  F {s.forward_s:.4g} s  "
            f"I {s.input_grad_s:.4g} s  W {s.weight_grad_s:.4g} s  {s.in_flight} in flight  "
            f"{s.nbytes / 2**30:.3g} GiB"
            for s in self.stages
        ]
        return "\n".join((head, *lines))

    def to_json(self) -> str:
        """Return JSON text that `from_json` reads."""
        return _ADAPTER.dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> StagePlan:
        """Read and check a plan; raise `PlanError` with the location of the first fault."""
        try:
            return _ADAPTER.validate_json(text).check()
        except ValidationError as error:
            raise PlanError(f"this is not a plan of stages: {first_fault(error)}") from None


_ADAPTER: TypeAdapter[StagePlan] = TypeAdapter(StagePlan)
