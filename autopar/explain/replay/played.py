"""Data classes of a replayed step: activity and memory over time, one row per group of equal ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

from autopar.pipeline.simulate import Simulated
from autopar.utils.shown import Shown


@dataclass(frozen=True, slots=True)
class Span:
    """An activity; `lane` is "compute" or "communication", `hidden` means overlapped with compute."""

    lane: str
    what: str
    start: float
    end: float
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """Ranks with the same timeline; `memory` is a list of (second, bytes from then on).

    `busy_s` is compute time; in a pipeline it is the time of whole actions, including their collectives.
    """

    name: str
    ranks: tuple[int, ...]
    spans: tuple[Span, ...]
    memory: tuple[tuple[float, float], ...]
    busy_s: float

    @property
    def peak(self) -> float:
        """The peak in bytes."""
        return max((nbytes for _, nbytes in self.memory), default=0.0)


@dataclass(frozen=True)
class Played(Shown):
    """A replayed step.

    `planned_s` is the plan's own prediction.  `samples` is the batch size relative to the planned one.
    """

    model: str
    conditions: str
    step_s: float
    planned_s: float
    rows: tuple[Row, ...]
    limit_nbytes: float | None
    samples: float = 1.0
    notes: tuple[str, ...] = ()
    simulated: Simulated | None = field(default=None, repr=False, compare=False)
