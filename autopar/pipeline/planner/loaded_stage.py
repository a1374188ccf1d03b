"""A plan of stages for a pipeline that is always full."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoadedStage:
    """Layers on `replicas` groups of `devices` devices of a pool; `load_s` per microbatch.

    `options` has the name of each layer's option.  `in_flight` microbatches are in flight on each
    replica.
    """

    layers: tuple[int, ...]
    options: tuple[str, ...]
    pool: int
    devices: int
    replicas: int
    in_flight: int
    load_s: float


@dataclass(frozen=True)
class ThroughputPlan:
    """Stages from first to last.  No plan has a load below `bound_s`.

    `downsets` counts those of the graph, None if there are more than were enumerated; `ranges` counts
    the pairs of downsets that were compared.  `method` says in words how plan and bound were found.
    """

    stages: tuple[LoadedStage, ...]
    load_s: float
    bound_s: float
    downsets: int | None
    ranges: int
    method: str

    @property
    def gap(self) -> float:
        """The load relative to the bound, less one; infinite if the bound is 0 and the load is not."""
        if self.load_s <= self.bound_s:
            return 0.0
        return self.load_s / self.bound_s - 1 if self.bound_s > 0 else float("inf")
