"""What tuning measured, as a file that a later run continues."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from autopar.errors import InputError
from autopar.tune.ask import Ask
from autopar.utils.cache import write
from autopar.utils.io import first_fault, text_of

SCHEMA = 1
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Triple = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Setting:
    """The job and the cluster of a measurement; steps of another one say nothing about this one."""

    model: str
    graph_digest: str
    mesh: str
    optimizer: str
    precision: str
    hardware: str
    torch: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A plan to run: what it is asked for by, the profile that priced it, and its prediction.

    `factors` are what the seconds of the first profile were multiplied by, and `parts` the seconds of
    compute and of exposed communication inside a host and between hosts by that first profile; None for
    a plan with stages, of whose step they are not the sum.
    """

    ask: Ask
    plan: str
    """Digest of the plan's decisions."""
    predicted_s: Seconds
    factors: Triple = (1.0, 1.0, 1.0)
    parts: Triple | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """An attempt, and the seconds of a step in each of its turns; () if it failed, because of `why`."""

    attempt: Attempt
    measured_s: tuple[Seconds, ...] = ()
    why: str = ""

    @property
    def step_s(self) -> float:
        """The median over its turns; infinity if it failed."""
        return median(self.measured_s) if self.measured_s else math.inf


@dataclass(frozen=True, slots=True)
class Record:
    """Every trial in one setting, in the order in which they ran."""

    setting: Setting
    trials: tuple[Trial, ...] = ()
    begun: Attempt | None = None
    """The attempt that runs now: one that ended its process is known by it, and not run again."""
    schema: int = SCHEMA

    def save(self, path: Path) -> None:
        """Write the file atomically."""
        write(json.dumps(asdict(self), indent=1) + "\n", path)

    @classmethod
    def load(cls, path: Path, setting: Setting) -> Record:
        """Read a record of this setting, or begin one if there is no file.

        A trial that had begun and has no result is one that failed.  Raises `InputError` if the file is
        malformed or of another setting.
        """
        if not path.exists():
            return cls(setting)
        text = text_of(path, "the record", InputError)
        try:
            found = TypeAdapter(cls).validate_json(text)
        except ValidationError as error:
            raise InputError(
                f"{path} is not a record of tuning: {first_fault(error)}. Pass another --record, or "
                "delete the file."
            ) from None
        differs = _differences(asdict(found.setting), asdict(setting))
        if found.schema != SCHEMA or differs:
            raise InputError(
                f"{path} has the steps of another job:\n- "
                + "\n- ".join(differs or [f"schema {found.schema}, not {SCHEMA}"])
                + "\nPass another --record."
            )
        if found.begun is None:
            return found
        ended = Trial(found.begun, why="its process ended during the trial")
        return cls(setting, (*found.trials, ended))


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of tuning: every trial, and the fastest with its plan and profile.

    `factors` are what the first profile's seconds were multiplied by in the end, and `ends` says why no
    more was tried.  `plan` is the fastest plan as JSON.  `hardware` is a profile, as TOML, by which
    the fastest's ask leads to this plan: the corrected one, or else the one that it was tried under.
    """

    trials: tuple[Trial, ...]
    fastest: Ask
    factors: Triple
    ends: str
    plan: str
    hardware: str

    def to_json(self) -> str:
        """Return all of it as text; `from_json` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Tuned:
        """Read what `to_json` wrote."""
        return TypeAdapter(cls).validate_json(text)


def _differences(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> list[str]:
    return [
        f"{name.replace('_', ' ')}: {theirs[name]} in the file, {value} here"
        for name, value in mine.items()
        if theirs[name] != value
    ]
