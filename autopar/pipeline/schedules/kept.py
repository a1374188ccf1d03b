"""Counts the microbatches (in units of one on one stage) and weight versions that a worker keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from autopar.pipeline.schedules.action import COMPUTE, Action
from autopar.pipeline.schedules.schedule import Actions, Schedule


def levels(actions: Actions, for_weights: float = 1.0) -> Iterator[tuple[int, Action, float]]:
    """Yield (position, action, microbatches kept after it).

    W releases the fraction `for_weights` of a microbatch, I the rest, and B all of it.
    """
    change = {"F": 1.0, "B": -1.0, "I": for_weights - 1.0, "W": -for_weights}
    level = 0.0
    for position, action in enumerate(actions):
        level += change.get(action.kind, 0.0)
        yield position, action, level


def most_kept(schedule: Schedule, for_weights: float = 1.0) -> tuple[float, ...]:
    """Return the maximum that each worker keeps."""
    return tuple(
        max((level for *_, level in levels(actions, for_weights)), default=0.0)
        for actions in schedule.workers
    )


def most_in_flight(actions: Sequence[Action]) -> int:
    """Return the maximum number of microbatches of one stage between forward and end of backward."""
    level = most = 0
    for action in actions:
        level += (action.kind == "F") - (action.kind in ("B", "W"))
        most = max(most, level)
    return most


def most_versions(actions: Sequence[Action]) -> int:
    """Return the maximum number of weight versions of one stage: the newest and older ones in use."""
    left = Counter(action.version for action in actions if action.kind in COMPUTE)
    newest, most = 0, 1
    for action in actions:
        if action.kind in COMPUTE:
            left[action.version] -= 1
        elif action.kind == "U":
            newest += 1
            most = max(most, 1 + sum(left[version] > 0 for version in range(newest)))
    return most
