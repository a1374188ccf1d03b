"""Discrete events over a schedule's lists: how long a step takes, who waits, who keeps how much."""

from autopar.simulate.values import (
    Costs,
    Link,
    Network,
    StageCost,
    Traffic,
    own_links,
    uniform,
)

__all__ = ["Costs", "Link", "Network", "StageCost", "Traffic", "own_links", "uniform"]
