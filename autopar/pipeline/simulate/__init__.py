"""Discrete-event simulation of schedules: step time, idle time and memory of each worker."""

from autopar.pipeline.simulate.bound import lower_bound
from autopar.pipeline.simulate.fit import Fitted, fit
from autopar.pipeline.simulate.memory import peaks
from autopar.pipeline.simulate.simulate import Simulated, simulate, step_seconds
from autopar.pipeline.simulate.trace import trace
from autopar.pipeline.simulate.values import (
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
    "Fitted",
    "Link",
    "Network",
    "Simulated",
    "StageCost",
    "Traffic",
    "fit",
    "lower_bound",
    "own_links",
    "peaks",
    "simulate",
    "step_seconds",
    "trace",
    "uniform",
]
