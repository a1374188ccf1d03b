"""Inputs of a simulation: seconds and bytes of stages, traffic between them, links between workers.

These are plain numbers, since the planner creates them by the thousand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autopar.pipeline.schedules.schedule import Edge


@dataclass(frozen=True, slots=True)
class StageCost:
    """Costs of one stage on one worker: seconds and bytes per rank, per microbatch where applicable.

    forward, input_gradient, weight_gradient   seconds of F, I and W
    backward          seconds of B; None: those of I and W together
    kept              bytes that a forward leaves for its backward
    kept_for_weights  the part of these that only W releases, not I
    working           further bytes while an action of the stage runs
    static            bytes that are always in use: weights, gradients, optimizer state
    version           bytes of the weights, added for each older version that is still needed
    reduction         seconds of the collective that sums the gradients over replicas, once per update
    update            seconds of the optimizer, once per update
    """

    forward: float
    input_gradient: float
    weight_gradient: float
    backward: float | None = None
    kept: float = 0.0
    kept_for_weights: float = 0.0
    working: float = 0.0
    static: float = 0.0
    version: float = 0.0
    reduction: float = 0.0
    update: float = 0.0

    @property
    def whole_backward(self) -> float:
        """Seconds of B."""
        if self.backward is None:
            return self.input_gradient + self.weight_gradient
        return self.backward


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes between two stages per microbatch: outputs forward, their gradients back.

    `gradient_nbytes` is None if no gradient is sent back (integers, booleans): no action waits for it.
    """

    source: int
    target: int
    nbytes: float = 0.0
    gradient_nbytes: float | None = 0.0

    @property
    def edge(self) -> Edge:
        """The edge between the two stages, without bytes."""
        return Edge(self.source, self.target, self.gradient_nbytes is not None)


@dataclass(frozen=True, slots=True)
class Link:
    """A link that carries one transfer at a time, first come first served, in one direction or both.

    A transfer occupies the link for nbytes / bandwidth and arrives `latency` later.  A full duplex
    link is two `Link`s, one per direction; a half duplex link is one that both directions use.
    """

    latency: float = 0.0
    bandwidth: float = float("inf")


@dataclass(frozen=True)
class Network:
    """The links between workers; `routes[sender, receiver]` has the indices of the links of a transfer.

    A transfer occupies all links of its route at once, at the bandwidth of the slowest; latencies add
    up.  Transfers between workers without a route take no time.
    """

    links: tuple[Link, ...] = ()
    routes: Mapping[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)


def own_links(workers: int, link: Link) -> Network:
    """Return a network with a link for every ordered pair of workers: full duplex, no contention."""
    pairs = [(a, b) for a in range(workers) for b in range(workers) if a != b]
    return Network((link,) * len(pairs), {pair: (i,) for i, pair in enumerate(pairs)})


@dataclass(frozen=True)
class Costs:
    """All inputs of a simulation other than the schedule.

    traffic   None: a chain of stages whose transfers take no time
    """

    stages: tuple[StageCost, ...]
    traffic: tuple[Traffic, ...] | None = None
    network: Network = Network()

    @property
    def edges(self) -> tuple[Traffic, ...]:
        """The traffic; for None, that of a chain."""
        if self.traffic is not None:
            return self.traffic
        return tuple(Traffic(stage, stage + 1) for stage in range(len(self.stages) - 1))


def uniform(
    stages: int, forward: float = 1.0, input_gradient: float = 1.0, weight_gradient: float = 1.0
) -> Costs:
    """Return the costs of equal stages with transfers that take no time."""
    return Costs((StageCost(forward, input_gradient, weight_gradient),) * stages)
