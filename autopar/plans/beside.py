"""A step beside its prediction, as values: lines of operator groups, flows of collectives."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from autopar.errors import InputError
from autopar.reading import first_fault, text_of


@dataclass(frozen=True, slots=True)
class Line:
    """An operator group: what one line of the user's source became in one block.

    `source` says where the predicted seconds are from; nothing where nothing is predicted: lines of
    conversions, whose collectives are flows, and what the runtime does.
    """

    block: str
    place: str
    code: str
    operators: int
    source: str
    predicted_forward_s: float
    measured_forward_s: float
    predicted_backward_s: float
    measured_backward_s: float


@dataclass(frozen=True, slots=True)
class FlowLine:
    """Collectives of one kind on one axis.  What of the measured seconds others hid is not known."""

    axis: str
    collective: str
    when: str
    predicted_calls: int
    measured_calls: int
    predicted_s: float
    measured_s: float


@dataclass(frozen=True, slots=True)
class Beside:
    """A step, predicted and measured, on one rank."""

    model: str
    mesh: str
    hardware: str
    plan: str
    predicted_step_s: float
    measured_step_s: float
    traced_step_s: float
    """With the profiler, which slows small operators down."""
    predicted_update_s: float
    measured_update_s: float
    lines: tuple[Line, ...]
    flows: tuple[FlowLine, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def load(cls, path: str | Path) -> Beside:
        """Read what ``autopar profile --run --json`` printed; `InputError` says what is wrong."""
        text = text_of(path, "the measured step", InputError)
        try:
            return TypeAdapter(cls).validate_json(text)
        except ValidationError as error:
            raise InputError(
                f"{path} is not a measured step: {first_fault(error)}. `autopar profile MODEL --mesh "
                f"... --run --json > {Path(path).name}` writes one."
            ) from None
