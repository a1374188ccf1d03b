"""A step beside its prediction, as values: lines of operator groups, flows of collectives."""

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
"""1, which files do not name, said of the plan no more than its digest."""
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Calls = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class Line:
    """An operator group: what one line of the user's source became in one block.

    `source` says where the predicted seconds are from; nothing where nothing is set beside them: lines
    of conversions, whose collectives are flows and whose copies are in the step alone, and what the
    runtime does.
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
    """Collectives of one kind on one axis.  What of the measured seconds others hid is not known."""

    axis: str
    collective: str
    when: str
    predicted_calls: Calls
    measured_calls: Calls
    predicted_s: Seconds
    measured_s: Seconds


@dataclass(frozen=True, slots=True)
class Beside:
    """A step, predicted and measured, on one rank."""

    of: Identity
    plan: str
    """The digest of the plan's decisions."""
    predicted_step_s: Seconds
    measured_step_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    traced_step_s: Seconds
    """With the profiler, which slows small operators down."""
    predicted_update_s: Seconds
    measured_update_s: Seconds
    lines: tuple[Line, ...]
    flows: tuple[FlowLine, ...]
    schema: int = STEP_SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    def check(self, plan: Plan, source: str = "The measured step") -> None:
        """Raise `InputError`, which names what differs, unless it is this plan's step."""
        differs = self._differences(plan)
        if differs:
            raise InputError(
                f"{source} is of another plan:\n- "
                + "\n- ".join(differs)
                + "\nMeasure the plan's own: "
                f"`autopar profile MODEL --mesh '{plan.mesh}' --hardware {plan.hardware} --run --json`, "
                "with the flags that made the plan; what it has no flag for, "
                "`autopar.profile.run_beside` measures inside of a program."
            )

    def _differences(self, plan: Plan) -> list[str]:
        """Of what is priced; if that is the same of what is decided, and then of the price."""
        step_s = plan.estimate.step_s
        return (
            self.of.differences(Identity.of(plan))
            or _differing("decisions", self.plan, plan.digest)
            or _differing("predicted step", f"{self.predicted_step_s} s", f"{step_s} s")
        )

    @classmethod
    def load(cls, path: str | Path) -> Beside:
        """Read what ``autopar profile --run --json`` printed; `InputError` says what is wrong."""
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
    """Refuse a step that another autopar measured, which says other things of its plan."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return  # what it is instead is said by whoever reads its fields
    if not isinstance(content, dict) or "measured_step_s" not in content:
        return
    schema = content.get("schema", 1)
    if schema != STEP_SCHEMA:
        raise InputError(
            f"{path} is a measured step of schema {schema}; this autopar reads {STEP_SCHEMA}. Measure "
            "the step again with `autopar profile --run --json`."
        )
