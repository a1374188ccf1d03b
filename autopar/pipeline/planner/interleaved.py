"""Plans interleaved 1F1B: equal workers with several stages (chunks) each, one round of workers apart.

The families of `families.py` have one stage per worker.  With c chunks on each worker the bubble is
about 1/c of theirs (Narayanan et al., arXiv:2104.04473, section 2.2), at the price of c times as many
messages and of more microbatches in flight.  All workers have the same way.

1. Every way, number of microbatches and number of chunks gets a closed form of its step
   (`chunks.py`), with stages of nearly equal seconds.  Local search moves borders, as long as the closed
   form becomes shorter.
2. The best by the closed form are simulated, until a lower bound shows that no other can be better.  If
   a chain has few cuts, all of them are.
3. Within `ALIKE` of the shortest step, stages of equally many positions win, then fewer chunks.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from autopar.pipeline.planner.chunks import Borders, Chunks, alike
from autopar.pipeline.planner.simulated import costs_of
from autopar.pipeline.planner.table import StageProblem
from autopar.pipeline.schedules.interleaved import interleaved
from autopar.pipeline.simulate import simulate

NAME = "interleaved"
ACTIONS = 20_000
"""Maximum number of actions of a simulated schedule.

A schedule with more has many microbatches per worker, and so a small bubble.
"""
CLIMBED = 16
"""Maximum combinations of way, microbatches and chunks, by workers, whose borders are searched."""
PLAYED = 8
"""Maximum of these that are simulated."""
CUTS = 200
"""Chains with at most so many cuts are searched completely."""
ALIKE = 1.005
"""Multiple of the shortest step within which a simpler plan is preferred."""


@dataclass(frozen=True)
class InterleavedPlan:
    """Stages between `borders`, all run in one way, `chunks` on each worker; `step_s` is simulated."""

    microbatches: int
    way: str
    chunks: int
    borders: Borders
    step_s: float

    @property
    def workers(self) -> int:
        """The number of workers."""
        return (len(self.borders) - 1) // self.chunks

    @property
    def complexity(self) -> tuple[bool, int]:
        """The order in which plans of nearly equal steps are preferred."""
        return not alike(self.borders), self.chunks


def interleavings(problem: StageProblem, below: float) -> list[InterleavedPlan]:
    """Return the best interleaved pipeline found for each number of workers, best first.

    Only those that fit and have a step below `below` seconds are returned.
    """
    by_workers: defaultdict[int, list[Chunks]] = defaultdict(list)
    for offer in _offers(problem):
        if offer.bound_s < below:
            by_workers[offer.workers].append(offer)
    found = (_best(problem, offers, below) for offers in by_workers.values())
    return sorted((each for each in found if each is not None), key=lambda each: each.step_s)


def _offers(problem: StageProblem) -> Iterator[Chunks]:
    """Yield every way of every table with every number of chunks that the positions allow."""
    for table in problem.tables:
        for number, way in enumerate(table.ways):
            workers, rest = divmod(problem.devices, way.size)
            if workers < 2 or rest or not way.offered[0, -1]:
                continue
            for chunks in range(2, (problem.positions - 1) // workers + 1):
                if 2 * chunks * workers * table.microbatches <= ACTIONS:
                    yield Chunks(table, number, workers, chunks)


def _best(problem: StageProblem, offers: Sequence[Chunks], below: float) -> InterleavedPlan | None:
    """Return the best plan of offers for one number of workers."""
    memory = problem.memory_nbytes
    ranked = sorted(
        ((offer.equal, offer) for offer in offers),
        key=lambda pair: pair[1].cost(pair[0], memory),
    )
    climbed = sorted(
        ((offer.climbed(borders, memory), offer) for borders, offer in ranked[:CLIMBED]),
        key=lambda pair: pair[1].cost(pair[0], memory),
    )
    found: list[InterleavedPlan] = []
    near = below
    for climb, offer in climbed[:PLAYED]:
        for borders in _tried(offer, climb, memory):
            if offer.least_s(borders) >= near:
                continue
            step = simulated_step(problem, offer, borders)
            if step < below:
                found.append(_plan(offer, borders, step))
                near = min(near, ALIKE * step)
    if not found:
        return None
    shortest = min(plan.step_s for plan in found)
    close = (plan for plan in found if plan.step_s <= ALIKE * shortest)
    return min(close, key=lambda plan: (plan.complexity, plan.step_s))


def _tried(offer: Chunks, climbed: Borders, memory: float) -> Iterator[Borders]:
    """Yield the borders to simulate: all of a short chain, or equal ones and those that were found."""
    last, stages = offer.last, offer.workers * offer.chunks
    if math.comb(last - 1, stages - 1) <= CUTS:
        every = [(0, *inner, last) for inner in itertools.combinations(range(1, last), stages - 1)]
        yield from sorted(every, key=lambda borders: offer.cost(borders, memory))
    else:
        yield from dict.fromkeys((climbed, offer.equal))


def simulated_step(problem: StageProblem, offer: Chunks, borders: Borders) -> float:
    """Return the simulated seconds of a step; infinite if it does not fit or a stage is not offered."""
    stages = [(start, end, offer.number) for start, end in pairwise(borders)]
    if not all(offer.way.offered[start, end] for start, end, _ in stages):
        return math.inf
    schedule = interleaved(offer.workers, offer.table.microbatches, len(stages))
    holders = [stage % offer.workers for stage in range(len(stages))]
    played = simulate(schedule, costs_of(offer.table, stages, holders))
    return played.step if max(played.peaks) <= problem.memory_nbytes else math.inf


def _plan(offer: Chunks, borders: Borders, step: float) -> InterleavedPlan:
    return InterleavedPlan(offer.table.microbatches, offer.way.name, offer.chunks, borders, step)
