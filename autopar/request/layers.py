"""The layers of each stage of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autopar.errors import InputError
from autopar.utils.messages import argument

ENDS = 2
"""Stages that may be without layers: the first, with the embedding, and the last, with the head."""


@dataclass(frozen=True)
class Layers:
    """A division of a model's layers among the stages of a pipeline.

    - `stages`: the number of layers of each stage; () for equal numbers, of which earlier stages have
      one more if they do not divide.  If there are one or two stages more than layers, the last and the
      first have none.
    - `fewer`: how many layers fewer the first and the last stage have, in place of the embedding and
      the head that they compute.
    """

    stages: tuple[int, ...] = ()
    fewer: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        if not all(type(count) is int and count >= 0 for count in (*self.stages, *self.fewer)):
            raise InputError(
                f"{argument('layers', self.stages or self.fewer)}: numbers of layers are whole "
                "numbers, not negative."
            )
        if not all(self.stages[1:-1]):
            raise InputError(
                f"{argument('layers', list(self.stages))}: only the first and the last stage may be "
                "without layers."
            )

    @classmethod
    def of(cls, given: Layers | Sequence[int] | Any) -> Layers:
        """Parse the argument ``layers=``: a `Layers`, or only the layers of each stage."""
        if isinstance(given, Layers):
            return given
        if isinstance(given, Sequence) and given and not isinstance(given, str):
            return cls(tuple(given))
        raise InputError(
            f"{argument('layers', given)}: pass the number of layers of each stage, such as "
            f"{argument('layers', [2, 2])}."
        )

    def counts(self, stages: int, layers: int) -> tuple[int, ...]:
        """Return the number of layers of each of `stages` stages of a model of `layers` layers.

        Raise `InputError` if the model cannot be divided so.
        """
        if self.stages:
            self._check(stages, layers)
            return self.stages
        fewer = self.fewer
        if fewer == (0, 0) and 0 < stages - layers <= ENDS:
            fewer = (int(stages - layers == ENDS), 1)
        each, more = divmod(layers + sum(fewer), stages)
        found = [each + (stage < more) for stage in range(stages)]
        found[0] -= fewer[0]
        found[-1] -= fewer[1]
        if min(found) < 0 or not all(found[1:-1]) or layers < stages - 2:
            raise InputError(
                f"{layers} layers cannot be divided among {stages} stages, of which each but the first "
                "and the last needs a layer. Pass fewer stages."
            )
        return tuple(found)

    def _check(self, stages: int, layers: int) -> None:
        if len(self.stages) != stages:
            raise InputError(
                f"{argument('layers', list(self.stages))} is for {len(self.stages)} stages; the "
                f"pipeline has {stages}. Pass a number of layers for each."
            )
        if sum(self.stages) != layers:
            raise InputError(
                f"{argument('layers', list(self.stages))} has {sum(self.stages)} layers; the model has "
                f"{layers}."
            )
