"""Data classes of a step compared with its prediction: operator groups and flows of collectives."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from autopar.errors import InputError
from autopar.plans.identity import Identity
from autopar.utils.io import first_fault, text_of

if TYPE_CHECKING:
    from autopar.plans.plan import Plan

STEP_SCHEMA = 2
"""File format version; files of version 1 have no version field and only the plan's digest."""
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Calls = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class Line:
    """An operator group: the operators of one line of the user's source in one block.

    `source` is that of the predicted seconds.  It is empty for lines without a prediction: conversions,
    whose collectives are flows and whose copies count in the step only, and the runtime's own work.
    """

    block: str
    place: str
    code: str
    operators: Calls
    source: str
    predicted_forward_s: Seconds
    measured_forward_s: Seconds
    predicted_backward_s: Seconds
    measured_backward_s: Seconds


@dataclass(frozen=True, slots=True)
class FlowLine:
    """Collectives of one kind on one axis.  The hidden part of the measured seconds is not known."""

    axis: str
    collective: str
    when: str
    predicted_calls: Calls
    measured_calls: Calls
    predicted_s: Seconds
    measured_s: Seconds


@dataclass(frozen=True, slots=True)
class Beside:
    """A predicted and measured step on one rank."""

    of: Identity
    plan: str
    """Digest of the plan's decisions."""
    predicted_step_s: Seconds
    measured_step_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    traced_step_s: Seconds
    """Step with the profiler, which slows small operators down."""
    predicted_update_s: Seconds
    measured_update_s: Seconds
    lines: tuple[Line, ...]
    flows: tuple[FlowLine, ...]
    schema: int = STEP_SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """Return the content for JSON."""
        return asdict(self)

    def check(self, plan: Plan, source: str = "The measured step") -> None:
        """Raise `InputError`, naming the differences, unless it is a step of this plan."""
        differs = self._differences(plan)
        if differs:
            raise InputError(
                f"{source} measures another plan:\n- "
                + "\n- ".join(differs)
                + f"\nMeasure this plan: `autopar profile MODEL --mesh '{plan.mesh}' --hardware "
                f"{plan.hardware} --run --json`, with the flags that made the plan; for "
                "options without a flag, call `autopar.profile.run_beside` in a program."
            )

    def _differences(self, plan: Plan) -> list[str]:
        """List the differences of the setup, or else of the decisions, or else of the prices."""
        step_s = plan.estimate.step_s
        return (
            self.of.differences(Identity.of(plan))
            or _differing("decisions", self.plan, plan.digest)
            or _differing("predicted step", f"{self.predicted_step_s} s", f"{step_s} s")
        )

    @classmethod
    def load(cls, path: str | Path) -> Beside:
        """Read the output of ``autopar profile --run --json``; raise `InputError` if it is malformed."""
        text = text_of(path, "the measured step", InputError)
        _check_schema(text, path)
        try:
            return TypeAdapter(cls).validate_json(text)
        except ValidationError as error:
            raise InputError(
                f"{path} is not a measured step: {first_fault(error)}. `autopar profile MODEL --mesh "
                f"... --run --json > {Path(path).name}` writes one."
            ) from None


def _differing(what: str, mine: str, plans: str) -> list[str]:
    return [f"{what}: {mine}, the plan's {plans}"] if mine != plans else []


def _check_schema(text: str, path: str | Path) -> None:
    """Refuse a step in another file format version."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return  # reading the fields will report the error
    if not isinstance(content, dict) or "measured_step_s" not in content:
        return
    schema = content.get("schema", 1)
    if schema != STEP_SCHEMA:
        raise InputError(
            f"{path} is a measured step of schema {schema}; this autopar reads {STEP_SCHEMA}. Measure "
            "the step again with `autopar profile --run --json`."
        )
