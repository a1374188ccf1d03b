"""No simulation undercuts the bound; it is reached where it can be."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.pipeline.schedules import Edge, Schedule, build
from autopar.pipeline.simulate import (
    Costs,
    Link,
    Network,
    StageCost,
    Traffic,
    lower_bound,
    simulate,
    uniform,
)
from tests.pipeline.schedules.drawing import schedules
from tests.pipeline.simulate.drawing_costs import random_costs


@pytest.mark.thorough
@settings(max_examples=300)
@given(schedules(), st.randoms(use_true_random=False))
def test_no_simulation_undercuts_it(
    drawn: tuple[Schedule, tuple[Edge, ...]], random: Random
) -> None:
    schedule, edges = drawn
    costs = random_costs(random, schedule.stages, len(schedule.workers), edges)
    bound = lower_bound(costs, schedule.holders, schedule.microbatches)
    assert simulate(schedule, costs).step >= bound * (1 - 1e-12)


@pytest.mark.parametrize("name", ("naive", "gpipe", "1f1b", "chimera", "interleaved", "pipedream"))
@given(st.randoms(use_true_random=False))
@settings(max_examples=20)
def test_of_whole_backwards(name: str, random: Random) -> None:
    """Higher than where backwards may be split, and still not undercut."""
    schedule = build(name, 4, 6)
    edges = tuple(Edge(s, s + 1) for s in range(schedule.stages - 1))
    costs = random_costs(random, schedule.stages, 4, edges)
    whole = lower_bound(costs, schedule.holders, 6, split=False)
    assert simulate(schedule, costs).step >= whole * (1 - 1e-12)
    assert whole >= lower_bound(costs, schedule.holders, 6) * (1 - 1e-12)


@pytest.mark.parametrize(("name", "split"), [("1f1b", False), ("zb-h2", True), ("zb-v", True)])
def test_reached(name: str, split: bool) -> None:
    schedule = build(name, 4, 8)
    costs = uniform(schedule.stages)
    assert lower_bound(costs, schedule.holders, 8, split) == simulate(schedule, costs).step


def test_replicas_share_the_work_on_average() -> None:
    """Two workers start after 0.1 s, do 5 of 10 microbatches each, and 0.1 s of stage 0 follows."""
    first = " ".join(f"0F{m}" for m in range(10)) + " " + " ".join(f"0B{m}" for m in range(10))
    halves = (" ".join(f"1F{m} 1B{m}" for m in range(half, 10, 2)) for half in (0, 1))
    lines = (
        "halves stages=2 microbatches=10",
        f"0: {first}",
        *(f"{w}: {h}" for w, h in enumerate(halves, 1)),
    )
    schedule = Schedule.parse("\n".join(lines))
    costs = Costs((StageCost(0.1, 0.1, 0.0), StageCost(1.0, 0.5, 0.5)))
    # If backwards may be split, weight gradients may come after that.
    assert lower_bound(costs, schedule.holders, 10) == pytest.approx(0.1 + 10)
    assert lower_bound(costs, schedule.holders, 10, split=False) == pytest.approx(0.1 + 10 + 0.1)
    assert 10.2 <= simulate(schedule, costs).step <= 10.5


def test_two_hops_share_a_link() -> None:
    """It is busy from the end of the first forward to the start of the last; reached by 1F1B."""
    traffic = (Traffic(0, 1, 10.0, None), Traffic(1, 2, 10.0, None))
    network = Network((Link(0, 1),), {(0, 1): (0,), (1, 2): (0,)})
    costs = Costs((StageCost(1, 0.5, 0.5),) * 3, traffic, network)
    schedule = build("1f1b", 3, 4)
    assert lower_bound(costs, schedule.holders, 4) == 1 + 8 * 10 + 2
    assert simulate(schedule, costs).step == 83


def test_a_slow_link_binds() -> None:
    schedule = build("gpipe", 2, 8)
    costs = Costs(
        (StageCost(1, 1, 1),) * 2,
        (Traffic(0, 1, 10.0, None),),
        Network((Link(0, 1),), {(0, 1): (0,)}),
    )
    assert lower_bound(costs, schedule.holders, 8, split=False) == 1 + 80 + 3
    assert simulate(schedule, costs).step >= 84
