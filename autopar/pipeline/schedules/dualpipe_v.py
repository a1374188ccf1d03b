"""DualPipeV: placement of ZB-V; its main part pairs a forward with a backward of another microbatch.

DeepSeek-AI, arXiv:2412.19437, section 3.2.1 (DualPipe), cut in half as in their repository DualPipe.
The pairs allow the transfers of each action to overlap the compute of the other.  Here the two actions
of a pair run one after the other.
"""

from __future__ import annotations

from collections import deque

from autopar.errors import ScheduleError
from autopar.pipeline.schedules.action import Action
from autopar.pipeline.schedules.schedule import Schedule, schedule_of


def dualpipe_v(workers: int, microbatches: int) -> Schedule:
    """Return the schedule; raise `ScheduleError` for fewer than two microbatches per worker."""
    if microbatches < 2 * workers:
        raise ScheduleError(
            f"dualpipe-v on {workers} workers needs at least {2 * workers} microbatches, not "
            f"{microbatches}; take more microbatches, or zb-v."
        )
    lists = (_Worker(worker, workers).run(microbatches) for worker in range(workers))
    return schedule_of("dualpipe-v", 2 * workers, microbatches, lists)


class _Worker:
    """Builds the list of a worker; counts its actions, and queues deferred weight gradients."""

    def __init__(self, worker: int, workers: int) -> None:
        self.down, self.up = worker, 2 * workers - 1 - worker
        self.before, self.behind = worker + 1, workers - worker - 1
        self.actions: list[Action] = []
        self.forwards = {self.down: 0, self.up: 0}
        self.backwards = {self.down: 0, self.up: 0}
        self.put_off: deque[Action] = deque()

    def run(self, microbatches: int) -> list[Action]:
        """Return the actions, in eight phases: three to fill, the pairs, four to drain."""
        for _ in range(2 * self.behind):
            self.forward(self.down)
        for _ in range(self.before):
            self.forward(self.down)
            self.forward(self.up)
        for _ in range(self.behind):
            self.backward(self.up, split=True)
            self.weights()
            self.forward(self.up)
        for _ in range(microbatches - 2 * self.behind - self.before):
            self.forward(self.down)
            self.backward(self.up)
            self.forward(self.up)
            self.backward(self.down)
        for _ in range(self.behind):
            self.backward(self.up)
            self.forward(self.up)
            self.backward(self.down)
        # The second half of these backwards is split, so that weight gradients fill later waits.
        for number in range(2 * self.before):
            stage = self.down if number % 2 else self.up
            self.backward(stage, split=number >= self.before)
        for _ in range(self.behind):
            self.weights()
            self.backward(self.down, split=True)
        while self.put_off:
            self.weights()
        return self.actions

    def forward(self, stage: int) -> None:
        self.actions.append(Action("F", stage, self.forwards[stage]))
        self.forwards[stage] += 1

    def backward(self, stage: int, split: bool = False) -> None:
        microbatch = self.backwards[stage]
        self.backwards[stage] += 1
        self.actions.append(Action("I" if split else "B", stage, microbatch))
        if split:
            self.put_off.append(Action("W", stage, microbatch))

    def weights(self) -> None:
        if self.put_off:
            self.actions.append(self.put_off.popleft())
