"""The `batches=` option: how batches arrive and which outputs are returned."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.errors import InputError


@dataclass(frozen=True)
class Batches:
    """What a call of the parallel module takes and returns.

    - `local`: every rank passes its own part of the batch, as under DDP; otherwise every rank passes
      the global batch.
    - `outputs`: names of outputs that the call returns besides the loss.
    - `replan`: whether a batch of another shape is planned on arrival; otherwise it is refused.
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
