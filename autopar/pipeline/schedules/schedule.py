"""The schedule of one training step: for each worker, what it does, in order.

A *worker* is the mesh of devices that holds one or more stages; all its ranks run the same list.
A stage may be held by several workers; which of them does a microbatch follows from the lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from autopar.errors import ScheduleError
from autopar.pipeline.schedules.action import COLLECTIVES, COMPUTE, SENDS, Action

Actions = tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """Stage `target` uses an output of stage `source`; `gradient` says whether one comes back.

    No gradient comes back for integers, booleans and what needs none.
    """

    source: int
    target: int
    gradient: bool = True


def chain(stages: int) -> tuple[Edge, ...]:
    """Each stage feeds the next."""
    return tuple(Edge(stage, stage + 1) for stage in range(stages - 1))


@dataclass(frozen=True)
class Schedule:
    """Prints one line per worker and parses back.

    asynchronous   weights are updated while other microbatches are in flight: `U` is in the lists and
                   F, B, I, W state the version of the weights they use; results differ from those of
                   the plain step, so such a schedule is only used when asked for
    """

    name: str
    stages: int
    microbatches: int
    workers: tuple[Actions, ...]
    asynchronous: bool = False

    def __hash__(self) -> int:
        """Quick: schedules are keys of caches, and have thousands of actions."""
        return hash((self.name, self.stages, self.microbatches, len(self.workers)))

    @cached_property
    def holders(self) -> tuple[tuple[int, ...], ...]:
        """For each stage, the workers that have actions of it."""
        found: list[set[int]] = [set() for _ in range(self.stages)]
        for worker, actions in enumerate(self.workers):
            for action in actions:
                if action.kind in COMPUTE and action.stage < self.stages:
                    found[action.stage].add(worker)
        return tuple(tuple(sorted(workers)) for workers in found)

    @cached_property
    def held(self) -> tuple[tuple[int, ...], ...]:
        """For each worker, the stages that it holds."""
        return tuple(
            tuple(stage for stage in range(self.stages) if worker in self.holders[stage])
            for worker in range(len(self.workers))
        )

    @cached_property
    def worker_of(self) -> dict[tuple[int, int], int]:
        """(stage, microbatch) -> the worker that does its forward."""
        return {
            (action.stage, action.microbatch): worker
            for worker, actions in enumerate(self.workers)
            for action in actions
            if action.kind == "F"
        }

    @cached_property
    def batches(self) -> int:
        """How many batches a run of the lists is of: each ends with an update of every stage."""
        updates = sum(a.kind == "U" and a.stage == 0 for row in self.workers for a in row)
        return max(1, updates)

    def of_stage(self, stage: int, worker: int) -> Actions:
        """What a worker does for one stage."""
        return tuple(action for action in self.workers[worker] if action.stage == stage)

    def runs(self, stage: int, worker: int) -> int:
        """The microbatches of a batch that a stage runs there."""
        ran = sum(action.kind == "F" for action in self.of_stage(stage, worker))
        return ran // self.batches

    @property
    def splits_backward(self) -> bool:
        """Whether some backward is done in two halves."""
        return any(action.kind == "I" for actions in self.workers for action in actions)

    @property
    def lowered(self) -> bool:
        """Whether transfers and collectives are written out."""
        return any(
            action.kind in SENDS | COLLECTIVES for actions in self.workers for action in actions
        )

    def __str__(self) -> str:
        head = f"{self.name} stages={self.stages} microbatches={self.microbatches}"
        head += " asynchronous" * self.asynchronous
        lists = (" ".join(map(str, actions)) for actions in self.workers)
        return "\n".join((head, *(f"{worker}: {text}" for worker, text in enumerate(lists))))

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Read what `str` writes."""
        head, *lines = [line for line in text.splitlines() if line.strip()] or [""]
        name, *words = head.split() or [""]
        given = dict(word.split("=", 1) for word in words if "=" in word)
        try:
            stages, microbatches = int(given["stages"]), int(given["microbatches"])
        except (KeyError, ValueError) as error:
            raise ScheduleError(
                f"Cannot read {head!r}; a schedule begins like '1f1b stages=4 microbatches=8'."
            ) from error
        lists = tuple(_read_line(line, worker) for worker, line in enumerate(lines))
        return cls(name, stages, microbatches, lists, "asynchronous" in words)


def _read_line(line: str, worker: int) -> Actions:
    number, colon, actions = line.partition(":")
    if not colon or number.strip() != str(worker):
        raise ScheduleError(f"The line of worker {worker} begins with '{worker}:', not {line!r}.")
    return tuple(Action.parse(word) for word in actions.split())


def schedule_of(
    name: str, stages: int, microbatches: int, workers: Iterable[Sequence[Action]]
) -> Schedule:
    """A synchronous schedule from lists."""
    return Schedule(name, stages, microbatches, tuple(map(tuple, workers)))
