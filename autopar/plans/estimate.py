"""What a step should cost: predicted figures of a plan, by kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autopar.plans.timing import OpTime


@dataclass(frozen=True, slots=True)
class Flow:
    """Predicted communication of one kind on one axis in one step: bytes on one rank, and seconds."""

    axis: str
    collective: str
    direction: Literal["forward", "backward"]
    scope: Literal["step", "microbatch"]
    calls: int
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Parts:
    """Compute by when it runs, and what may hide beside it: with them a step can be played again.

    `backward_s` counts what is recomputed.  `hideable` are seconds of reductions by mesh axis, of
    which `covers_s` at most find a place beside the backward.
    """

    forward_s: float
    backward_s: float
    update_s: float
    hideable: tuple[tuple[str, float], ...]
    covers_s: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a step should cost on one rank.  Seconds and bytes.

    `hidden_s` is communication that overlaps compute; `exposed_s` is what remains visible.
    """

    compute_s: float
    exposed_s: float
    hidden_s: float
    flows: tuple[Flow, ...]
    parameter_nbytes: int
    gradient_nbytes: int
    optimizer_nbytes: int
    activation_nbytes: int
    working_nbytes: int
    in_flight: int = 1
    """Microbatches whose activations are kept at the same time; `activation_nbytes` are of one."""
    parts: Parts | None = None
    """None in plans that were written before this was recorded."""
    operators: tuple[OpTime, ...] = ()
    """Of each operator in a microbatch, without collectives; none in plans of before that."""
    absent_nbytes: int | None = None
    """So much less is in use at the highest point where gradients are dropped between steps: those that
    are not there yet.  None in plans that were written before this was recorded."""

    @property
    def step_s(self) -> float:
        """Seconds of one training step."""
        return self.compute_s + self.exposed_s

    @property
    def dropping_nbytes(self) -> int:
        """Peak bytes on one rank where gradients are dropped between steps, as `zero_grad()` does."""
        return self.memory_nbytes - (self.absent_nbytes or 0)

    @property
    def memory_nbytes(self) -> int:
        """Peak bytes on one rank, where gradients stay between steps."""
        return (
            self.parameter_nbytes
            + self.gradient_nbytes
            + self.optimizer_nbytes
            + self.in_flight * self.activation_nbytes
            + self.working_nbytes
        )
