"""V's that are played: against every cut of small chains, in the memory that there is."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from autopar.pipeline.planner import (
    ONE_F_ONE_B,
    StageOption,
    StageProblem,
    StageTable,
    VSchedulePlan,
    vees,
)
from autopar.pipeline.planner.table import Array, ranges
from autopar.pipeline.schedules.zb_v import zb_v
from autopar.pipeline.simulate import Costs, Link, Network, StageCost, Traffic, simulate

LAYERS = 8
LATENCY_S = 0.05


def chain(seed: int, memory: float = math.inf, devices: int = 2) -> StageProblem:
    """Layers of random seconds and bytes, which add up; ways on one device and on two."""
    random = np.random.default_rng(seed)

    def summed(most: float) -> Array:
        each = random.uniform(0.2, 1.0, LAYERS) * most
        return ranges(LAYERS + 1, lambda start, end: float(each[start:end].sum()))

    def way(size: int) -> StageOption:
        seconds = [
            np.where(part > 0, part, np.inf)
            for part in (summed(1 / size), summed(1.2 / size), summed(0.9 / size))
        ]
        once = summed(0.3)
        return StageOption(
            f"on {size}", 1, size, *seconds, summed(4.0), summed(1.0), summed(0.1), once, 0 * once
        )

    send = random.uniform(0.0, 0.2, (LAYERS + 1, 1, 1))
    tables = tuple(StageTable(count, (way(1), way(2)), send, send, LATENCY_S) for count in (2, 4))
    return StageProblem(LAYERS + 1, devices, min(memory, 1e9), tables, (ONE_F_ONE_B,)).check()


def played(problem: StageProblem, count: int, name: str, borders: tuple[int, ...]) -> float:
    """Seconds of a V, told to the simulator in other words; infinite where it does not fit."""
    table = next(each for each in problem.tables if each.microbatches == count)
    way = next(each for each in table.ways if each.name == name)
    workers = (len(borders) - 1) // 2
    stages = [
        StageCost(
            float(way.forward_s[at]), float(way.input_grad_s[at]), float(way.weight_grad_s[at]),
            None, float(way.kept_nbytes[at]), float(way.kept_nbytes[at]),
            float(way.working_nbytes[at]), float(way.rest_nbytes[at]), update=float(way.exposed_s[at]),
        )
        for at in pairwise(borders)
    ]  # fmt: skip
    traffic = [
        Traffic(stage, stage + 1, float(table.send_s[end, 0, 0]), float(table.return_s[end, 0, 0]))
        for stage, end in enumerate(borders[1:-1])
    ]
    ends = [(w, w + 1) for w in range(workers - 1)]
    routes = {pair: (i,) for i, pair in enumerate([*ends, *(e[::-1] for e in ends)])}
    network = Network((Link(LATENCY_S, 1.0),) * len(routes), routes)
    found = simulate(zb_v(workers, count), Costs(tuple(stages), tuple(traffic), network))
    return found.step if max(found.peaks) <= problem.memory_nbytes else math.inf


def least(problem: StageProblem, workers: int) -> float:
    """Of every V on so many workers."""
    name = f"on {problem.devices // workers}"
    return min(
        played(problem, table.microbatches, name, (0, *inner, LAYERS))
        for table in problem.tables
        for inner in itertools.combinations(range(1, LAYERS), 2 * workers - 1)
    )


def check(problem: StageProblem, found: VSchedulePlan) -> None:
    """It is a V of the table, and takes what it says."""
    assert found.borders[0] == 0 and found.borders[-1] == LAYERS
    assert all(start < end for start, end in pairwise(found.borders))
    step = played(problem, found.microbatches, found.way, found.borders)
    assert found.step_s == pytest.approx(step)


@pytest.mark.parametrize("seed", range(8))
def test_the_best_cuts_are_nearly_found(seed: int) -> None:
    problem = chain(seed)
    (found,) = vees(problem, math.inf)
    check(problem, found)
    best = least(problem, 2)
    assert best * (1 - 1e-9) <= found.step_s <= 1.1 * best


def test_one_for_each_number_of_workers() -> None:
    problem = chain(3, devices=4)
    found = vees(problem, math.inf)
    assert {(vee.workers, vee.way) for vee in found} == {(2, "on 2"), (4, "on 1")}
    assert [vee.step_s for vee in found] == sorted(vee.step_s for vee in found)
    for vee in found:
        check(problem, vee)


def test_none_that_is_not_better_than_what_is_known() -> None:
    problem = chain(0)
    (found,) = vees(problem, math.inf)
    assert vees(problem, 0.8 * found.step_s) == []
    assert vees(problem, 1.01 * found.step_s)[0].step_s <= 1.01 * found.step_s


def test_memory_is_kept() -> None:
    """The fastest V here keeps between 14 and 16 bytes on a worker, and no other keeps less than 14."""
    (wide,) = vees(chain(1), math.inf)
    assert least(chain(1, 14.0), 2) == math.inf
    found = [vees(chain(1, memory), math.inf) for memory in (14.0, 16.0, 100.0)]
    assert found == [[], [wide], [wide]]


def test_where_the_v_turns_nothing_is_sent() -> None:
    """However long that would take: the stages on both sides are one worker's."""
    problem = chain(1)
    (found,) = vees(problem, math.inf)
    turn = found.borders[found.workers]

    def slow_at(place: int) -> list[VSchedulePlan]:
        sent = [table.send_s.copy() for table in problem.tables]
        for each in sent:
            each[place] = 1e3
        pairs = zip(problem.tables, sent, strict=True)
        tables = tuple(replace(table, send_s=each, return_s=each) for table, each in pairs)
        return vees(replace(problem, tables=tables), math.inf)

    assert slow_at(turn) == [found] and slow_at(found.borders[1]) != [found]
