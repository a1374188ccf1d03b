"""What passes each border where only neighbouring stages talk: tensors that skip stages are relayed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from autopar.ir.split import Stages


@dataclass(frozen=True)
class Relays:
    """Of a pipeline's stages, which may read what any earlier stage made."""

    stages: Stages

    @cached_property
    def made_by(self) -> dict[str, int]:
        """The stage that makes each tensor that crosses a border."""
        return {c.tensor: c.source for c in self.stages.crossings}

    @cached_property
    def readers(self) -> dict[str, tuple[int, ...]]:
        """The stages that read each of them."""
        found: dict[str, tuple[int, ...]] = {}
        for crossing in self.stages.crossings:
            found[crossing.tensor] = (*found.get(crossing.tensor, ()), crossing.target)
        return found

    @cached_property
    def borders(self) -> tuple[tuple[str, ...], ...]:
        """The tensors that pass from stage s to s + 1, for it or for later ones, in one order."""
        return tuple(
            tuple(
                name
                for name, source in self.made_by.items()
                if source <= stage < max(self.readers[name])
            )
            for stage in range(len(self.stages.graphs) - 1)
        )

    def into(self, stage: int) -> tuple[str, ...]:
        """What a stage gets from the one before."""
        return self.borders[stage - 1] if stage else ()

    def out_of(self, stage: int) -> tuple[str, ...]:
        """What a stage passes on to the next: its own results and what it relays."""
        return self.borders[stage] if stage < len(self.borders) else ()
