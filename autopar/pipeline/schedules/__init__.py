"""Pipeline schedules as plain lists of actions, one list per worker."""

from autopar.pipeline.schedules.action import Action, Kind
from autopar.pipeline.schedules.check import check
from autopar.pipeline.schedules.lower import lower
from autopar.pipeline.schedules.registry import SCHEDULES, build
from autopar.pipeline.schedules.schedule import Edge, Schedule, chain
from autopar.pipeline.schedules.stream import stream

__all__ = [
    "SCHEDULES", "Action", "Edge", "Kind", "Schedule", "build", "chain", "check", "lower", "stream",
]  # fmt: skip
