"""Bytes over time: by hand, and as sums that must come out."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.pipeline.schedules import Edge, Schedule, build
from autopar.pipeline.simulate import Costs, StageCost, simulate
from tests.pipeline.schedules.drawing import schedules
from tests.pipeline.simulate.drawing_costs import random_costs


def test_by_hand() -> None:
    """F takes 8 of which I gives back 5 and W 3; 2 more while anything runs; 100 at rest."""
    schedule = Schedule.parse("hand stages=1 microbatches=2\n0: 0F0 0F1 0I0 0B1 0W0")
    cost = StageCost(1, 1, 1, kept=8, kept_for_weights=3, working=2, static=100)
    simulated = simulate(schedule, Costs((cost,)))
    assert simulated.memory(0) == (
        (0, 110), (1, 108), (1, 118), (2, 116), (2, 118), (3, 111), (3, 113), (5, 103), (5, 105),
        (6, 100),
    )  # fmt: skip
    assert simulated.peaks == (118,)


@given(schedules(), st.randoms(use_true_random=False))
def test_all_that_was_kept_is_given_back(
    drawn: tuple[Schedule, tuple[Edge, ...]], random: Random
) -> None:
    schedule, edges = drawn
    costs = random_costs(random, schedule.stages, len(schedule.workers), edges)
    simulated = simulate(schedule, costs)
    for worker, held in enumerate(schedule.held):
        steps = simulated.memory(worker)
        rest = sum(costs.stages[stage].static for stage in held)
        if steps:
            assert steps[-1][1] == pytest.approx(rest)
            assert max(nbytes for _, nbytes in steps) == simulated.peaks[worker]
            assert [when for when, _ in steps] == sorted(when for when, _ in steps)


@pytest.mark.parametrize("workers", (2, 4, 6))
def test_pipedream_keeps_a_version_per_microbatch_in_flight(workers: int) -> None:
    """Stage s of S keeps S - s versions: Narayanan et al., SOSP 2019, section 3.3."""
    costs = Costs((StageCost(1, 1, 1, static=1, version=1),) * workers)
    stashing = simulate(build("pipedream", workers, 12), costs).peaks
    assert stashing == tuple(workers - s for s in range(workers))


@pytest.mark.parametrize("workers", (2, 4, 6))
def test_2bw_keeps_two_versions(workers: int) -> None:
    """ "Double-buffered": arXiv:2006.09503, section 3.1."""
    costs = Costs((StageCost(1, 1, 1, static=1, version=1),) * workers)
    assert max(simulate(build("pipedream-2bw", workers, 6 * workers), costs).peaks) == 2
