"""How many microbatches a worker keeps between forward and backward, in units of one stage's one."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.schedules.action import Action
from autopar.schedules.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Kept:
    """The most that a worker keeps, and the action after which it first does."""

    count: float
    position: int
    action: Action | None


def most_kept(schedule: Schedule, for_weights: float = 1.0) -> tuple[Kept, ...]:
    """For each worker; `for_weights` is the share of a microbatch that only W gives back, not I."""
    change = {"F": 1.0, "B": -1.0, "I": for_weights - 1.0, "W": -for_weights}
    found = []
    for actions in schedule.workers:
        level, most = 0.0, Kept(0.0, 0, None)
        for position, action in enumerate(actions):
            level += change.get(action.kind, 0.0)
            if level > most.count + 1e-9:
                most = Kept(level, position, action)
        found.append(most)
    return tuple(found)
