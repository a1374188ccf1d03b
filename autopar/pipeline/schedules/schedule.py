"""The pipeline schedule of one training step: an ordered list of actions for each worker.

A *worker* is a mesh of devices that holds one or more stages; all its ranks run the same list.
Several workers may hold the same stage; the lists determine which of them runs a microbatch.
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
    """Stage `target` uses an output of stage `source`; `gradient`: a gradient is sent back.

    None is sent back for integers, booleans and tensors that require no gradient.
    """

    source: int
    target: int
    gradient: bool = True


def chain(stages: int) -> tuple[Edge, ...]:
    """Return the edges of a chain, in which each stage feeds the next."""
    return tuple(Edge(stage, stage + 1) for stage in range(stages - 1))


@dataclass(frozen=True)
class Schedule:
    """A schedule.  Its printed form has one line per worker and can be parsed.

    asynchronous   weights are updated while other microbatches are in flight: the lists contain `U`, and
                   F, B, I, W state the version of the weights they use.  Results differ from those of
                   a synchronous step, so such a schedule is only used on request
    """

    name: str
    stages: int
    microbatches: int
    workers: tuple[Actions, ...]
    asynchronous: bool = False

    def __hash__(self) -> int:
        """Hash without the actions: schedules are cache keys and have thousands of actions."""
        return hash((self.name, self.stages, self.microbatches, len(self.workers)))

    @cached_property
    def holders(self) -> tuple[tuple[int, ...], ...]:
        """For each stage, the workers that hold it."""
        found: list[set[int]] = [set() for _ in range(self.stages)]
        for worker, actions in enumerate(self.workers):
            for action in actions:
                if action.kind in COMPUTE and action.stage < self.stages:
                    found[action.stage].add(worker)
        return tuple(tuple(sorted(workers)) for workers in found)

    @cached_property
    def held(self) -> tuple[tuple[int, ...], ...]:
        """For each worker, the stages it holds."""
        return tuple(
            tuple(stage for stage in range(self.stages) if worker in self.holders[stage])
            for worker in range(len(self.workers))
        )

    @cached_property
    def worker_of(self) -> dict[tuple[int, int], int]:
        """(stage, microbatch) -> the worker that runs its forward."""
        return {
            (action.stage, action.microbatch): worker
            for worker, actions in enumerate(self.workers)
            for action in actions
            if action.kind == "F"
        }

    @cached_property
    def batches(self) -> int:
        """Number of batches in one run of the lists; each batch ends with an update of every stage."""
        updates = sum(a.kind == "U" and a.stage == 0 for row in self.workers for a in row)
        return max(1, updates)

    def of_stage(self, stage: int, worker: int) -> Actions:
        """Return the actions of a worker for one stage."""
        return tuple(action for action in self.workers[worker] if action.stage == stage)

    def runs(self, stage: int, worker: int) -> int:
        """Return how many microbatches of a batch the worker runs for a stage."""
        ran = sum(action.kind == "F" for action in self.of_stage(stage, worker))
        return ran // self.batches

    @property
    def splits_backward(self) -> bool:
        """Whether some backward is split into input and weight gradients."""
        return any(action.kind == "I" for actions in self.workers for action in actions)

    @property
    def lowered(self) -> bool:
        """Whether transfers and collectives are explicit actions."""
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
        """Read the form that `str` writes; raise `ScheduleError` if the text is not one."""
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
    """Return a synchronous schedule made of these lists."""
    return Schedule(name, stages, microbatches, tuple(map(tuple, workers)))
