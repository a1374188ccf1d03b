"""What a person says of the batches that come, and of what comes out: one frozen value."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.errors import InputError


@dataclass(frozen=True)
class Batches:
    """What a call of the module takes and returns.

    - `local`: every rank passes its own part of the batch, as under DDP; else all pass the whole one.
    - `outputs`: names of outputs that the call returns beside the loss.
    - `replan`: whether batches of other shapes are planned when they come, or refused.
    """

    local: bool = False
    outputs: tuple[str, ...] = ()
    replan: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.outputs, str):
            raise InputError(
                f"outputs is a list of names, not {self.outputs!r}: pass [{self.outputs!r}]."
            )
        object.__setattr__(self, "outputs", tuple(self.outputs))
