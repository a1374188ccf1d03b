"""What a worker keeps: microbatches (in units of one stage's one) and versions of weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from autopar.pipeline.schedules.action import COMPUTE, Action
from autopar.pipeline.schedules.schedule import Actions, Schedule


def levels(actions: Actions, for_weights: float = 1.0) -> Iterator[tuple[int, Action, float]]:
    """(position, action, kept after it).  W gives back the share `for_weights`, I the rest, B all."""
    change = {"F": 1.0, "B": -1.0, "I": for_weights - 1.0, "W": -for_weights}
    level = 0.0
    for position, action in enumerate(actions):
        level += change.get(action.kind, 0.0)
        yield position, action, level


def most_kept(schedule: Schedule, for_weights: float = 1.0) -> tuple[float, ...]:
    """The most that each worker keeps."""
    return tuple(
        max((level for *_, level in levels(actions, for_weights)), default=0.0)
        for actions in schedule.workers
    )


def most_in_flight(actions: Sequence[Action]) -> int:
    """The most microbatches of one stage that are between forward and (the end of) backward."""
    level = most = 0
    for action in actions:
        level += (action.kind == "F") - (action.kind in ("B", "W"))
        most = max(most, level)
    return most


def most_versions(actions: Sequence[Action]) -> int:
    """The most versions of one stage's weights: the newest, and older ones that are still needed."""
    left = Counter(action.version for action in actions if action.kind in COMPUTE)
    newest, most = 0, 1
    for action in actions:
        if action.kind in COMPUTE:
            left[action.version] -= 1
        elif action.kind == "U":
            newest += 1
            most = max(most, 1 + sum(left[version] > 0 for version in range(newest)))
    return most
