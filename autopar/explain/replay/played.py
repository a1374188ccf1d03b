"""A played step: who does what when, and how much memory is in use; equal ranks share a row."""

from __future__ import annotations

from dataclasses import dataclass, field

from autopar.pipeline.simulate import Simulated
from autopar.utils.shown import Shown


@dataclass(frozen=True, slots=True)
class Span:
    """`lane` is "compute" or "communication"; what is hidden runs beside compute."""

    lane: str
    what: str
    start: float
    end: float
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """Ranks that do the same at the same time; `memory` is (second, bytes from then on).

    `busy_s` is compute; of a pipeline it is that of whole actions, the collectives in them included.
    """

    name: str
    ranks: tuple[int, ...]
    spans: tuple[Span, ...]
    memory: tuple[tuple[float, float], ...]
    busy_s: float

    @property
    def peak(self) -> float:
        """The most bytes."""
        return max((nbytes for _, nbytes in self.memory), default=0.0)


@dataclass(frozen=True)
class Played(Shown):
    """`planned_s` is the plan's own prediction; a step takes `samples` times as much data as planned."""

    model: str
    conditions: str
    step_s: float
    planned_s: float
    rows: tuple[Row, ...]
    limit_nbytes: float | None
    samples: float = 1.0
    notes: tuple[str, ...] = ()
    simulated: Simulated | None = field(default=None, repr=False, compare=False)
