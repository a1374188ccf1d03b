"""Schedules: which worker does which part of which microbatch when.  Plain action lists."""

from autopar.schedules.action import Action, Kind
from autopar.schedules.schedule import Edge, Schedule, chain

__all__ = ["Action", "Edge", "Kind", "Schedule", "chain"]
