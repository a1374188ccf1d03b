"""Determines the tensors at each stage boundary if only neighbouring stages communicate.

Tensors that skip stages are relayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from autopar.ir.split import Stages


@dataclass(frozen=True)
class Relays:
    """The boundaries of a pipeline whose stages may read tensors of any earlier stage."""

    stages: Stages

    @cached_property
    def made_by(self) -> dict[str, int]:
        """The stage that computes each tensor that crosses a boundary."""
        return {c.tensor: c.source for c in self.stages.crossings}

    @cached_property
    def readers(self) -> dict[str, tuple[int, ...]]:
        """The stages that read each such tensor."""
        found: dict[str, tuple[int, ...]] = {}
        for crossing in self.stages.crossings:
            found[crossing.tensor] = (*found.get(crossing.tensor, ()), crossing.target)
        return found

    @cached_property
    def borders(self) -> tuple[tuple[str, ...], ...]:
        """The tensors sent from stage s to s + 1, for it or later stages, in a fixed order."""
        return tuple(
            tuple(
                name
                for name, source in self.made_by.items()
                if source <= stage < max(self.readers[name])
            )
            for stage in range(len(self.stages.graphs) - 1)
        )

    def into(self, stage: int) -> tuple[str, ...]:
        """Return the tensors that a stage receives from the previous one."""
        return self.borders[stage - 1] if stage else ()

    def out_of(self, stage: int) -> tuple[str, ...]:
        """Return the tensors that a stage sends to the next: its own results and relayed ones."""
        return self.borders[stage] if stage < len(self.borders) else ()
