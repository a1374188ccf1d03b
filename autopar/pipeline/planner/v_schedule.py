"""V's: every worker holds two stages, so that the last one is where the first is (ZB-V).

The recurrences of `families.py` are of one stage on each worker.  A V halves what a microbatch waits
for in the bubble, and weights that the first and the last stage share (tied embeddings) are one worker's
own.  Workers are equal here.  Of each number of them, stages of equal seconds are played in every way
and number of microbatches that could be the best; then the slowest worker's stages give up an end, place
by place, while the step becomes shorter.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from autopar.pipeline.planner.simulated import costs_of
from autopar.pipeline.planner.table import StageOption, StageProblem, StageTable
from autopar.pipeline.schedules.zb_v import zb_v
from autopar.pipeline.simulate import simulate

NAME = "zb-v"
ACTIONS = 20_000
"""Of a schedule that is played, at most.  What has more has many microbatches to each worker, and little
bubble that could be filled."""
PLAYED = 24
"""Ways and numbers of microbatches that are played with equal stages, for each number of workers."""
MOVES = 12
"""Borders of the best of them that are moved."""

Borders = tuple[int, ...]


@dataclass(frozen=True)
class VSchedulePlan:
    """Stages between `borders`, all run in one way, two on each worker; `step_s` by its table."""

    microbatches: int
    way: str
    borders: Borders
    step_s: float

    @property
    def workers(self) -> int:
        """How many."""
        return (len(self.borders) - 1) // 2


@dataclass(frozen=True)
class _Offer:
    """One way, on as many workers as the devices make."""

    table: StageTable
    number: int
    workers: int

    @property
    def way(self) -> StageOption:
        return self.table.ways[self.number]

    @property
    def bound_s(self) -> float:
        """The work of a step, shared equally: as work adds up, no V takes less."""
        return self.table.microbatches * float(self.way.seconds[0, -1]) / self.workers


def vees(problem: StageProblem, below: float) -> list[VSchedulePlan]:
    """For each number of workers the V of the least step that was found, where that is less than so many
    seconds and fits; best first."""
    by_workers: defaultdict[int, list[_Offer]] = defaultdict(list)
    for offer in sorted(_offers(problem), key=lambda offer: offer.bound_s):
        by_workers[offer.workers].append(offer)
    found = (_best(problem, offers[:PLAYED], below) for offers in by_workers.values())
    return sorted((vee for vee in found if vee is not None), key=lambda vee: vee.step_s)


def _offers(problem: StageProblem) -> Iterator[_Offer]:
    for table in problem.tables:
        for number, way in enumerate(table.ways):
            workers, rest = divmod(problem.devices, way.size)
            fits = workers > 1 and 2 * workers < problem.positions and not rest
            if fits and 6 * workers * table.microbatches <= ACTIONS and way.offered[0, -1]:
                yield _Offer(table, number, workers)


def _best(problem: StageProblem, offers: Sequence[_Offer], below: float) -> VSchedulePlan | None:
    """Of offers for one number of workers, by their bounds."""
    best: tuple[_Offer, Borders] | None = None
    for offer in offers:
        if offer.bound_s >= below:
            break
        borders = _equal(offer)
        if (step := _step(problem, offer, borders)) < below:
            best, below = (offer, borders), step
    return None if best is None else _climbed(problem, *best, below)


def _climbed(problem: StageProblem, offer: _Offer, borders: Borders, step: float) -> VSchedulePlan:
    """From these borders on, which take so many seconds."""
    better: Borders | None = borders
    left = MOVES
    while better is not None and left > 0:
        borders, better = better, None
        for moved in _neighbours(offer, borders):
            left -= 1
            if (shorter := _step(problem, offer, moved)) < step:
                better, step = moved, shorter
                break
    return VSchedulePlan(offer.table.microbatches, offer.way.name, better or borders, step)


def _equal(offer: _Offer) -> Borders:
    """Where equal shares of the seconds end, each at least a place behind the one before."""
    until = [0.0, *offer.way.seconds[0, 1:].tolist()]
    stages, last = 2 * offer.workers, len(until) - 1
    borders = [0]
    for stage in range(1, stages):
        wanted = until[-1] * stage / stages
        places = range(borders[-1] + 1, last - (stages - stage) + 1)
        borders.append(min(places, key=lambda place: abs(until[place] - wanted)))
    return (*borders, last)


def _neighbours(offer: _Offer, borders: Borders) -> Iterator[Borders]:
    """The slowest worker's two stages, each without its first place, and without its last."""
    seconds = [float(offer.way.seconds[at]) for at in pairwise(borders)]
    last = len(seconds) - 1
    slowest = max(range(offer.workers), key=lambda worker: seconds[worker] + seconds[last - worker])
    for stage in (slowest, last - slowest):
        for border, towards in ((stage, 1), (stage + 1, -1)):
            moved = borders[border] + towards
            if 0 < border <= last and moved not in borders:
                yield (*borders[:border], moved, *borders[border + 1 :])


def _step(problem: StageProblem, offer: _Offer, borders: Sequence[int]) -> float:
    """Seconds of a step; infinite where a worker keeps too many bytes, or a stage cannot be run."""
    stages = [(start, end, offer.number) for start, end in pairwise(borders)]
    if not all(offer.way.offered[start, end] for start, end, _ in stages):
        return math.inf
    # Workers are neighbours as the first stages of the chain are; where the V turns nothing is sent.
    schedule = zb_v(offer.workers, offer.table.microbatches)
    played = simulate(schedule, costs_of(offer.table, stages))
    return played.step if max(played.peaks) <= problem.memory_nbytes else math.inf
