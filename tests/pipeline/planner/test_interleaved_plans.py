"""Interleaved pipelines that are planned: against every cut of small chains, within memory."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from autopar.pipeline.planner import (
    ONE_F_ONE_B,
    InterleavedPlan,
    StageOption,
    StageProblem,
    StageTable,
    interleavings,
    plan_stages,
)
from autopar.pipeline.planner.chunks import Borders, Chunks
from autopar.pipeline.planner.interleaved import ALIKE, simulated_step
from autopar.pipeline.planner.table import Array, ranges
from autopar.pipeline.schedules.interleaved import interleaved, warm_up
from autopar.pipeline.simulate import Costs, Link, Network, StageCost, Traffic, simulate

LAYERS = 8
LATENCY_S = 0.02


def chain(
    seed: int, memory: float = 1e9, devices: int = 2, layers: int = LAYERS, even: bool = False
) -> StageProblem:
    """Layers of random seconds and bytes, which add up; ways on one device and on two."""
    random = np.random.default_rng(seed)

    def summed(most: float) -> Array:
        each = np.ones(layers) if even else random.uniform(0.2, 1.0, layers)
        return ranges(layers + 1, lambda start, end: float(most * each[start:end].sum()))

    def way(size: int) -> StageOption:
        seconds = [
            np.where(part > 0, part, np.inf)
            for part in (summed(1 / size), summed(1.2 / size), summed(0.9 / size))
        ]
        once = summed(0.3)
        return StageOption(
            f"on {size}", 1, size, *seconds, summed(4.0), summed(1.0), summed(0.1), once, once / 2
        )

    send = random.uniform(0.0, 0.05, (layers + 1, 1, 1))
    tables = tuple(
        StageTable(count, (way(1), way(2)), send, 2 * send, LATENCY_S) for count in (2, 4, 5)
    )
    return StageProblem(layers + 1, devices, memory, tables, (ONE_F_ONE_B,)).check()


def played(problem: StageProblem, count: int, name: str, workers: int, borders: Borders) -> float:
    """Seconds of a pipeline, told to the simulator in other words; infinite where it does not fit."""
    table = next(each for each in problem.tables if each.microbatches == count)
    way = next(each for each in table.ways if each.name == name)
    stages = []
    for at in pairwise(borders):
        back = float(way.input_grad_s[at] + way.weight_grad_s[at])
        stages.append(
            StageCost(
                float(way.forward_s[at]), back, 0.0, None, float(way.kept_nbytes[at]),
                0.0, float(way.working_nbytes[at]), float(way.rest_nbytes[at]),
                update=float(way.exposed_s[at]),
                reduction=max(0.0, float(way.hideable_s[at]) - back),
            )
        )  # fmt: skip
    traffic = [
        Traffic(stage, stage + 1, float(table.send_s[end, 0, 0]), float(table.return_s[end, 0, 0]))
        for stage, end in enumerate(borders[1:-1])
    ]
    pairs = list(itertools.permutations(range(workers), 2))
    routes = {pair: (place,) for place, pair in enumerate(pairs)}
    network = Network((Link(LATENCY_S, 1.0),) * len(pairs), routes)
    schedule = interleaved(workers, count, len(stages))
    found = simulate(schedule, Costs(tuple(stages), tuple(traffic), network))
    return found.step if max(found.peaks) <= problem.memory_nbytes else math.inf


def every_step(problem: StageProblem, workers: int) -> Iterator[float]:
    """Of every interleaved pipeline on so many workers: all chunks, microbatches and cuts."""
    name, layers = f"on {problem.devices // workers}", problem.positions - 1
    for table, chunks in itertools.product(problem.tables, range(2, layers // workers + 1)):
        for inner in itertools.combinations(range(1, layers), chunks * workers - 1):
            borders = (0, *inner, layers)
            yield played(problem, table.microbatches, name, workers, borders)


def check(problem: StageProblem, found: InterleavedPlan) -> None:
    """It is a plan of the table, and takes what it says."""
    assert found.borders[0] == 0 and found.borders[-1] == problem.positions - 1
    assert all(start < end for start, end in pairwise(found.borders))
    assert len(found.borders) - 1 == found.chunks * found.workers
    step = played(problem, found.microbatches, found.way, found.workers, found.borders)
    assert found.step_s == pytest.approx(step)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("layers", [4, 7, 8])
def test_the_best_of_all_cuts_is_found(seed: int, layers: int) -> None:
    """Or a simpler one within half a per cent."""
    problem = chain(seed, layers=layers)
    (found,) = interleavings(problem, math.inf)
    check(problem, found)
    best = min(every_step(problem, 2))
    assert best * (1 - 1e-9) <= found.step_s <= ALIKE * best * (1 + 1e-9)
    assert found.step_s == pytest.approx(best) or found.complexity < (True, layers)


def test_one_for_each_number_of_workers() -> None:
    problem = chain(3, devices=4)
    found = interleavings(problem, math.inf)
    assert {(each.workers, each.way) for each in found} == {(2, "on 2"), (4, "on 1")}
    assert [each.step_s for each in found] == sorted(each.step_s for each in found)
    for each in found:
        check(problem, each)


def test_none_that_is_not_better_than_what_is_known() -> None:
    problem = chain(0)
    (found,) = interleavings(problem, math.inf)
    assert interleavings(problem, 0.8 * found.step_s) == []
    assert interleavings(problem, 1.01 * found.step_s)[0].step_s <= 1.01 * found.step_s


@pytest.mark.parametrize("seed", range(3))
def test_memory_is_kept(seed: int) -> None:
    """Limits between what the wide plan needs and what no plan has: the best that fits, if any does."""
    (wide,) = interleavings(chain(seed), math.inf)
    fitted = Counter[bool]()
    for memory in (6.0, 9.0, 12.0, 14.0, 16.0, 100.0):
        problem = chain(seed, memory)
        found = interleavings(problem, math.inf)
        best = min(every_step(problem, 2))
        fitted[bool(found)] += 1
        assert bool(found) == (best < math.inf)
        for each in found:
            check(problem, each)
            assert wide.step_s / ALIKE <= each.step_s <= ALIKE * best
    assert fitted[True] and fitted[False]


def test_equal_layers_are_divided_equally() -> None:
    """Nine layers on two workers leave one over, which the longer search puts where it costs least."""
    (found,) = interleavings(chain(0, even=True), math.inf)
    assert len({end - start for start, end in pairwise(found.borders)}) == 1
    (found,) = interleavings(chain(0, even=True, layers=24), math.inf)
    assert len({end - start for start, end in pairwise(found.borders)}) == 1
    many = replace(chain(0, even=True, layers=21), devices=2)
    (found,) = interleavings(many, math.inf)
    loads = [
        sum(end - start for start, end in list(pairwise(found.borders))[worker::2])
        for worker in range(2)
    ]
    assert sorted(loads) == [10, 11]


@pytest.mark.parametrize("seed", range(4))
def test_bounds_and_closed_forms(seed: int) -> None:
    """No simulation is below the bound; the closed form of equal layers is near."""
    problem = chain(seed, layers=12, even=seed == 0)
    for table, chunks in itertools.product(problem.tables, (2, 3)):
        offer = Chunks(table, 0, 2, chunks)
        random = np.random.default_rng(seed)
        for _ in range(10):
            inner = sorted(random.choice(np.arange(1, 12), 2 * chunks - 1, replace=False).tolist())
            borders = (0, *inner, 12)
            step = simulated_step(problem, offer, borders)
            assert offer.bound_s <= offer.least_s(borders) <= step * (1 + 1e-9)
        if seed == 0:
            step = simulated_step(problem, offer, offer.equal)
            assert offer.cost(offer.equal, 1e9).step_s == pytest.approx(step, rel=0.1)


@pytest.mark.parametrize(("workers", "microbatches", "rounds"), [(2, 4, 2), (4, 9, 3), (3, 2, 2)])
def test_the_warm_up_is_that_of_the_lists(workers: int, microbatches: int, rounds: int) -> None:
    schedule = interleaved(workers, microbatches, workers * rounds)
    for row, found in zip(schedule.workers, warm_up(workers, microbatches, rounds), strict=True):
        first = next(place for place, action in enumerate(row) if action.kind != "F")
        counted = Counter(action.stage // workers for action in row[:first])
        assert found == [counted[round_] for round_ in range(rounds)]


def test_it_wins_over_one_stage_on_each_worker_with_few_microbatches() -> None:
    problem = replace(chain(0, even=True, devices=4), tables=chain(0, even=True).tables[1:2])
    plain = plan_stages(replace(problem, tables=tuple(_small(t) for t in problem.tables)))
    best = interleavings(problem, math.inf)[0]
    assert len(plain.stages) > 1 and best.step_s < plain.step_s


def _small(table: StageTable) -> StageTable:
    """The table without ways on several devices."""
    return replace(table, ways=table.ways[:1])
