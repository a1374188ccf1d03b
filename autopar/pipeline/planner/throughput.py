"""Minimises the maximal load: seconds per microbatch of the slowest stage of a full pipeline.

A stage lies between nested downsets of the graph (sets of layers that contain all predecessors of their
members), and has one way (pool x degree), a number of replicas and one option per layer.  There are two
methods:

- `lattice/` if loads and bytes are sums over layers.  It takes graphs with millions of downsets, and
  gives a plan with a bound for graphs with more.
- `in_flight.py` if layers have several options on one way, or keep bytes for each microbatch in flight.
"""

from __future__ import annotations

from autopar.pipeline.planner.lattice.effort import Effort
from autopar.pipeline.planner.loaded_stage import LoadedStage, ThroughputPlan
from autopar.pipeline.planner.workload import Workload

__all__ = ["Effort", "LoadedStage", "ThroughputPlan", "least_load"]

USUAL = Effort()


def least_load(workload: Workload, effort: Effort = USUAL) -> ThroughputPlan:
    """Return the plan with the highest throughput that is found, and a bound.

    Raises `InfeasibleError` if nothing fits, or if no plan was found.
    """
    # numba takes a while to load: not for every command.
    from autopar.pipeline.planner.in_flight_plan import least_load_in_flight
    from autopar.pipeline.planner.lattice.additive import additive_loads
    from autopar.pipeline.planner.lattice.plan import least_additive_load

    loads = additive_loads(workload.check())
    if loads is not None:
        return least_additive_load(workload, loads, effort)
    return least_load_in_flight(workload)
