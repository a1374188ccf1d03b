"""Closed forms of an interleaved pipeline: a worker's seconds and bytes, from those of its chunks.

Chunk r of worker w, of W workers, is stage r W + w.  With M microbatches, t[w] seconds of worker w for
forward and backward of one microbatch through all its chunks, and `once` what it does once per step,

    step  =  max over w of ( M t[w] + once[w] )  +  (W - 1) / (c W)  sum over w of t[w]  +  transfers

(Narayanan et al., arXiv:2104.04473, section 2.2.2: the bubble is (W - 1) / c of a microbatch's time on a
worker).  The transfers are those of one microbatch through W - 1 workers and back.  The lower bound
keeps one worker: it waits for the first microbatch to reach its first chunk, does its work, and the last
gradient travels from its first chunk to the first stage.

A worker's bytes peak at the end of its warm-up, when it has run as many forwards as the schedule runs
ahead, group by group through its chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from autopar.pipeline.planner.table import Array, StageOption, StageTable
from autopar.pipeline.schedules.interleaved import warm_up

ROUNDS = 200
"""Maximum moves of the local search."""
FINER = 1e-9
"""Relative difference of two closed forms that counts as equal."""

Borders = tuple[int, ...]


def alike(borders: Borders) -> bool:
    """Return whether all stages but the first and the last have equally many positions."""
    return len({end - start for start, end in pairwise(borders[1:-1])}) <= 1


@dataclass(frozen=True)
class Cost:
    """What local search minimises, in this order: bytes above the limit, the step, uneven workers."""

    over_nbytes: float
    step_s: float
    uneven: float

    def __lt__(self, other: Cost) -> bool:
        for one, two in zip(self._figures, other._figures, strict=True):
            if abs(one - two) > FINER * max(abs(one), abs(two)):
                return one < two
        return False

    @property
    def _figures(self) -> tuple[float, float, float]:
        return self.over_nbytes, self.step_s, self.uneven


@dataclass(frozen=True, eq=False)
class Chunks:
    """One way of a table on all of `workers` equal workers, with `chunks` stages on each."""

    table: StageTable
    number: int
    workers: int
    chunks: int

    @property
    def way(self) -> StageOption:
        """The way of all stages."""
        return self.table.ways[self.number]

    @property
    def last(self) -> int:
        """The last position of the chain."""
        return len(self.way.seconds) - 1

    @property
    def bound_s(self) -> float:
        """A lower bound on the step with any borders: the work of a step, divided equally."""
        return self.table.microbatches * float(self.way.seconds[0, -1]) / self.workers

    @cached_property
    def equal(self) -> Borders:
        """Borders of stages of nearly equal seconds, each with at least one position."""
        until = np.concatenate(([0.0], self.way.seconds[0, 1:]))
        stages, last = self.workers * self.chunks, self.last
        wanted = until[-1] * np.arange(1, stages) / stages
        above = np.clip(np.searchsorted(until, wanted), 1, last)
        nearer = wanted - until[above - 1] <= until[above] - wanted
        places = np.arange(1, stages)
        # Strictly increasing, with room for the stages before and after.
        found = np.maximum.accumulate(np.where(nearer, above - 1, above) - places) + places
        found = np.minimum(np.maximum(found, places), last - stages + places)
        return (0, *found.tolist(), last)

    def cost(self, borders: Borders, memory_nbytes: float) -> Cost:
        """Return the closed forms of these borders."""
        at = self._at(borders)
        seconds = self._of_workers(self.way.seconds[at])
        once = self._of_workers(self._once(at))
        work = self.table.microbatches * seconds + once
        bubble = (self.workers - 1) / (self.workers * self.chunks) * float(seconds.sum())
        passed = (self.workers - 1) * float(self._passing[list(borders[1:-1])].mean())
        over = float(self.nbytes(borders).max()) - memory_nbytes
        return Cost(max(0.0, over), float(work.max()) + bubble + passed, float((work**2).sum()))

    def least_s(self, borders: Borders) -> float:
        """Return a lower bound on the simulated step of these borders; see the module's docstring."""
        at, few = self._at(borders), self.workers - 1
        cuts, way = list(borders[1 : few + 1]), self.way
        before = way.forward_s[at][:few] + self.table.send_s[cuts, way.exit, way.entry]
        behind = (way.input_grad_s + way.weight_grad_s)[at][:few]
        behind = behind + self.table.return_s[cuts, way.exit, way.entry]
        heads, tails = (
            np.concatenate(([0.0], (each + self.table.latency_s).cumsum()))
            for each in (before, behind)
        )
        own = self._of_workers(self._once(at))
        work = self.table.microbatches * self._of_workers(way.seconds[at])
        return float((heads + work + np.maximum(tails, own)).max())

    def nbytes(self, borders: Borders) -> Array:
        """Return [worker]: the bytes at the end of the warm-up."""
        at = self._at(borders)
        flying = _warmed_up(self.workers, self.table.microbatches, self.chunks)
        kept = self._of_workers(self.way.kept_nbytes[at] * flying)
        working = self.way.working_nbytes[at].reshape(self.chunks, self.workers).max(axis=0)
        peak: Array = self._of_workers(self.way.rest_nbytes[at]) + kept + working
        return peak

    def climbed(self, borders: Borders, memory_nbytes: float) -> Borders:
        """Return the borders that local search finds from these."""
        cost = self.cost(borders, memory_nbytes)
        for _ in range(ROUNDS):
            for moved in self._neighbours(borders):
                if (better := self.cost(moved, memory_nbytes)) < cost:
                    borders, cost = moved, better
                    break
            else:
                break
        return borders

    def _neighbours(self, borders: Borders) -> Iterator[Borders]:
        """Yield borders in which a chunk of the busiest worker gives a position to another worker's.

        The borders in between move by one position: the stages there keep their number of positions.
        """
        seconds = self._of_workers(self.way.seconds[self._at(borders)])
        order = np.argsort(seconds, kind="stable").tolist()
        for receiver in order[:-1]:
            for give in range(order[-1], self.workers * self.chunks, self.workers):
                for take in range(receiver, self.workers * self.chunks, self.workers):
                    if borders[give + 1] - borders[give] > 1:
                        yield _given(borders, give, take)

    def _at(self, borders: Borders) -> tuple[list[int], list[int]]:
        """Return the index of all stages in an array of ranges."""
        return list(borders[:-1]), list(borders[1:])

    def _of_workers(self, of_stages: Array) -> Array:
        """Return the sum over each worker's chunks."""
        total: Array = of_stages.reshape(self.chunks, self.workers).sum(axis=0)
        return total

    def _once(self, at: tuple[list[int], list[int]]) -> Array:
        way = self.way
        hides = (way.input_grad_s + way.weight_grad_s)[at]
        once: Array = way.exposed_s[at] + np.maximum(0.0, way.hideable_s[at] - hides)
        return once

    @cached_property
    def _passing(self) -> Array:
        """[cut]: seconds of a microbatch's transfers there and back."""
        table, border = self.table, (self.way.exit, self.way.entry)
        both: Array = table.send_s[:, *border] + table.return_s[:, *border]
        return both + 2 * table.latency_s


def _given(borders: Borders, give: int, take: int) -> Borders:
    """Return the borders after stage `give` has lost a position and stage `take` has gained one."""
    moved = list(borders)
    step, between = (
        (-1, range(give + 1, take + 1)) if give < take else (1, range(take + 1, give + 1))
    )
    for border in between:
        moved[border] += step
    return tuple(moved)


@lru_cache(maxsize=256)
def _warmed_up(workers: int, microbatches: int, chunks: int) -> NDArray[np.int64]:
    """Return [stage]: the microbatches that it has in flight when its worker's first backward begins."""
    return np.array(warm_up(workers, microbatches, chunks)).T.ravel()
