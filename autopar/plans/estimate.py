"""The predicted cost of a training step, by kind."""

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
class Prefetched:
    """Weights' gathers and their gradients' reductions that run while another block computes.

    Those of one axis in one pass.  Of their `hideable_s` seconds at most `covers_s`, the seconds of the
    other blocks' compute, are hidden.
    """

    axis: str
    direction: Literal["forward", "backward"]
    hideable_s: float
    covers_s: float

    @property
    def hidden_s(self) -> float:
        """The seconds that add nothing to the step."""
        return min(self.hideable_s, self.covers_s)


@dataclass(frozen=True, slots=True)
class Parts:
    """Compute by phase, and the communication that it may hide; enough to simulate a step again.

    `backward_s` includes recomputation.  `hideable` is seconds of reductions by mesh axis, of which at
    most `covers_s` overlap with the backward.
    """

    forward_s: float
    backward_s: float
    update_s: float
    hideable: tuple[tuple[str, float], ...]
    covers_s: float
    prefetched: tuple[Prefetched, ...] = ()


@dataclass(frozen=True, slots=True)
class Estimate:
    """The predicted cost of a step on one rank, in seconds and bytes.

    `hidden_s` is communication that overlaps with compute; `exposed_s` is communication that does not.
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
    """Microbatches whose activations are kept at the same time; `activation_nbytes` is for one."""
    parts: Parts | None = None
    """None in old plans, which did not record it."""
    operators: tuple[OpTime, ...] = ()
    """One per operator of a microbatch, without collectives; empty in old plans."""
    absent_nbytes: int | None = None
    """How much lower the peak is if gradients are dropped between steps: the gradients that do not exist
    yet at the peak.  None in old plans, which did not record it."""

    @property
    def step_s(self) -> float:
        """Seconds of one training step."""
        return self.compute_s + self.exposed_s

    @property
    def dropping_nbytes(self) -> int:
        """Peak bytes on one rank if gradients are dropped between steps, as `zero_grad()` does."""
        return self.memory_nbytes - (self.absent_nbytes or 0)

    @property
    def memory_nbytes(self) -> int:
        """Peak bytes on one rank if gradients are kept between steps."""
        return (
            self.parameter_nbytes
            + self.gradient_nbytes
            + self.optimizer_nbytes
            + self.in_flight * self.activation_nbytes
            + self.working_nbytes
        )
