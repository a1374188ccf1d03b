"""Discrete events over a schedule's lists: how long a step takes, who waits, who keeps how much."""

from autopar.simulate.simulate import Simulated, simulate, step_seconds
from autopar.simulate.values import (
    Costs,
    Link,
    Network,
    StageCost,
    Traffic,
    own_links,
    uniform,
)

__all__ = [
    "Costs",
    "Link",
    "Network",
    "Simulated",
    "StageCost",
    "Traffic",
    "own_links",
    "simulate",
    "step_seconds",
    "uniform",
]
