"""Schedules: which worker does which part of which microbatch when.  Plain action lists."""

from autopar.schedules.action import Action, Kind
from autopar.schedules.check import check
from autopar.schedules.lower import lower
from autopar.schedules.registry import SCHEDULES, build
from autopar.schedules.schedule import Edge, Schedule, chain
from autopar.schedules.stream import stream

__all__ = [
    "SCHEDULES", "Action", "Edge", "Kind", "Schedule", "build", "chain", "check", "lower", "stream",
]  # fmt: skip
