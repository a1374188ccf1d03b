"""Plans V schedules (ZB-V): every worker has two stages, and the first and last stage share a worker.

The families of `families.py` have one stage per worker.  A V halves a microbatch's wait in the bubble.
Weights that the first and the last stage share (tied embeddings) stay on one worker.  All workers have
the same way.  For each number of workers, stages of equal seconds are simulated in every way and
number of microbatches that could be the best.  Then local search moves a border of the slowest
worker's stages by one position as long as the step becomes shorter.
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
"""Maximum number of actions of a simulated schedule.

A schedule with more has many microbatches per worker, and so a small bubble.
"""
PLAYED = 24
"""Maximum combinations of way and microbatches simulated with equal stages, per number of workers."""
MOVES = 12
"""Maximum simulations of the local search (checked before each round of neighbours)."""

Borders = tuple[int, ...]


@dataclass(frozen=True)
class VSchedulePlan:
    """Stages between `borders`, all run in one way, two on each worker; `step_s` is simulated."""

    microbatches: int
    way: str
    borders: Borders
    step_s: float

    @property
    def workers(self) -> int:
        """The number of workers."""
        return (len(self.borders) - 1) // 2


@dataclass(frozen=True)
class _Offer:
    """One way of one table, on as many workers as fill the devices."""

    table: StageTable
    number: int
    workers: int

    @property
    def way(self) -> StageOption:
        return self.table.ways[self.number]

    @property
    def bound_s(self) -> float:
        """A lower bound on the step of every V: the work of a step, divided equally among workers."""
        return self.table.microbatches * float(self.way.seconds[0, -1]) / self.workers


def vees(problem: StageProblem, below: float) -> list[VSchedulePlan]:
    """Return the best V found for each number of workers, best first.

    Only those that fit and have a step below `below` seconds are returned.
    """
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
    """Return the best V of offers for one number of workers, which are sorted by their bounds."""
    best: tuple[_Offer, Borders] | None = None
    for offer in offers:
        if offer.bound_s >= below:
            break
        borders = _equal(offer)
        if (step := _step(problem, offer, borders)) < below:
            best, below = (offer, borders), step
    return None if best is None else _climbed(problem, *best, below)


def _climbed(problem: StageProblem, offer: _Offer, borders: Borders, step: float) -> VSchedulePlan:
    """Return the V that local search finds from these borders, which have a step of `step` seconds."""
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
    """Return borders of stages of nearly equal seconds, each with at least one layer."""
    until = [0.0, *offer.way.seconds[0, 1:].tolist()]
    stages, last = 2 * offer.workers, len(until) - 1
    borders = [0]
    for stage in range(1, stages):
        wanted = until[-1] * stage / stages
        places = range(borders[-1] + 1, last - (stages - stage) + 1)
        borders.append(min(places, key=lambda place: abs(until[place] - wanted)))
    return (*borders, last)


def _neighbours(offer: _Offer, borders: Borders) -> Iterator[Borders]:
    """Yield borders with one of the slowest worker's two stages shortened by a position at one end."""
    seconds = [float(offer.way.seconds[at]) for at in pairwise(borders)]
    last = len(seconds) - 1
    slowest = max(range(offer.workers), key=lambda worker: seconds[worker] + seconds[last - worker])
    for stage in (slowest, last - slowest):
        for border, towards in ((stage, 1), (stage + 1, -1)):
            moved = borders[border] + towards
            if 0 < border <= last and moved not in borders:
                yield (*borders[:border], moved, *borders[border + 1 :])


def _step(problem: StageProblem, offer: _Offer, borders: Sequence[int]) -> float:
    """Return the seconds of a step; infinite if memory is exceeded or a stage is not offered."""
    stages = [(start, end, offer.number) for start, end in pairwise(borders)]
    if not all(offer.way.offered[start, end] for start, end, _ in stages):
        return math.inf
    schedule = zb_v(offer.workers, offer.table.microbatches)
    # Nothing is sent where the V turns.
    holders = [*range(offer.workers), *reversed(range(offer.workers))]
    played = simulate(schedule, costs_of(offer.table, stages, holders))
    return played.step if max(played.peaks) <= problem.memory_nbytes else math.inf
