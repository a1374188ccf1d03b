"""Bytes in use on each worker.  F allocates, I releases a part, W the rest, and B all.

The peak does not depend on times, only on the order of each worker's own list.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from autopar.pipeline.schedules.action import Action
from autopar.pipeline.schedules.schedule import Schedule
from autopar.pipeline.simulate.values import StageCost


def levels(
    schedule: Schedule, stages: tuple[StageCost, ...], worker: int
) -> Iterator[tuple[Action, float, float]]:
    """Yield (action, bytes while it runs, bytes after it) for the actions of one worker, in order."""
    level = sum(stages[stage].static for stage in schedule.held[worker])
    versions = _Versions(schedule, worker)
    for action in schedule.workers[worker]:
        if action.kind not in ("F", "B", "I", "W", "U"):
            continue
        cost = stages[action.stage]
        if action.kind == "F":
            level += cost.kept
        level += cost.version * versions.more(action)
        running = level + cost.working
        if action.kind == "B":
            level -= cost.kept
        elif action.kind == "I":
            level -= cost.kept - cost.kept_for_weights
        elif action.kind == "W":
            level -= cost.kept_for_weights
        level -= cost.version * versions.fewer(action)
        yield action, running, level


def peaks(schedule: Schedule, stages: tuple[StageCost, ...]) -> tuple[float, ...]:
    """Return the peak bytes of each worker."""
    return tuple(
        max((running for _, running, _ in levels(schedule, stages, worker)), default=0.0)
        for worker in range(len(schedule.workers))
    )


class _Versions:
    """A worker's older weights: a version is kept from the update that replaces it to its last use."""

    def __init__(self, schedule: Schedule, worker: int) -> None:
        self.uses: dict[tuple[int, int], int] = defaultdict(int)
        self.current: dict[int, int] = defaultdict(int)
        self.asynchronous = schedule.asynchronous
        if schedule.asynchronous:
            for action in schedule.workers[worker]:
                if action.kind in ("F", "B", "I", "W"):
                    self.uses[action.stage, action.version] += 1

    def more(self, action: Action) -> int:
        """Return 1 if the action is an update whose previous version is still needed, else 0."""
        if not self.asynchronous or action.kind != "U":
            return 0
        before = self.current[action.stage]
        self.current[action.stage] = before + 1
        return int(self.uses[action.stage, before] > 0)

    def fewer(self, action: Action) -> int:
        """Return 1 if the action is the last use of an older version, else 0."""
        if not self.asynchronous or action.kind == "U":
            return 0
        key = (action.stage, action.version)
        self.uses[key] -= 1
        return int(not self.uses[key] and action.version < self.current[action.stage])
