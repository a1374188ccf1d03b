"""Runs lists with transfers as if every send waited for its receive, and collectives for all workers.

Which actions meet does not depend on the speed of workers, so one run decides for every execution.
"""

from __future__ import annotations

from autopar.errors import ScheduleError
from autopar.pipeline.schedules.action import COLLECTIVES, RECEIVES, SENDS, Action, Kind
from autopar.pipeline.schedules.schedule import Schedule


def run_blocking(schedule: Schedule) -> None:
    """Raise `ScheduleError` if workers deadlock."""
    at = [0] * len(schedule.workers)
    partners = _partners(schedule)

    def head(worker: int) -> Action | None:
        row = schedule.workers[worker]
        return row[at[worker]] if at[worker] < len(row) else None

    ready = list(range(len(at)))
    while ready:
        worker = ready.pop()
        while (action := head(worker)) is not None:
            meets = partners.get((worker, action), ((worker, action),))
            if any(head(other) != theirs for other, theirs in meets):
                break
            for other, _ in meets:
                at[other] += 1
            ready += [other for other, _ in meets if other != worker]
    stuck = [worker for worker in range(len(at)) if head(worker) is not None]
    if stuck:
        lines = (_waits(worker, at[worker], head(worker), partners) for worker in stuck)
        raise ScheduleError(
            f"{schedule.name} hangs where sends wait for their receives:\n" + "\n".join(lines)
        )


Meeting = tuple[tuple[int, Action], ...]


def _partners(schedule: Schedule) -> dict[tuple[int, Action], Meeting]:
    """Return by (worker, action) all such pairs that run together, including itself."""
    on: dict[Action, list[int]] = {}
    for worker, actions in enumerate(schedule.workers):
        for action in actions:
            if action.kind in SENDS | RECEIVES | COLLECTIVES:
                on.setdefault(action, []).append(worker)
    found: dict[tuple[int, Action], Meeting] = {}
    for action, workers in on.items():
        if action.kind in COLLECTIVES:
            meeting = tuple((worker, action) for worker in workers)
            found.update({(worker, action): meeting for worker in workers})
        elif action.kind in SENDS and action.peer is not None:
            kind: Kind = "RECV_F" if action.kind == "SEND_F" else "RECV_B"
            take = Action(kind, action.peer, action.microbatch, action.stage)
            meeting = ((workers[0], action), (on[take][0], take))
            found.update({(workers[0], action): meeting, (on[take][0], take): meeting})
    return found


def _waits(
    worker: int, position: int, action: Action | None, partners: dict[tuple[int, Action], Meeting]
) -> str:
    assert action is not None
    others = (m for m in partners.get((worker, action), ()) if m[0] != worker)
    text = ", ".join(f"{theirs} of worker {other}" for other, theirs in others)
    return f"  worker {worker}, position {position}: {action} waits for {text}"
