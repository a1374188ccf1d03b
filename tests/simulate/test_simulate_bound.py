"""No simulation undercuts the bound; it is reached where it can be."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.schedules import Edge, Schedule, build
from autopar.simulate import (
    Costs,
    Link,
    Network,
    StageCost,
    Traffic,
    lower_bound,
    simulate,
    uniform,
)
from tests.schedules.drawing import schedules
from tests.simulate.drawing_costs import random_costs


@settings(max_examples=300, deadline=None)
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
@settings(max_examples=20, deadline=None)
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


def test_a_slow_link_binds() -> None:
    schedule = build("gpipe", 2, 8)
    costs = Costs(
        (StageCost(1, 1, 1),) * 2,
        (Traffic(0, 1, 10.0, None),),
        Network((Link(0, 1),), {(0, 1): (0,)}),
    )
    assert lower_bound(costs, schedule.holders, 8, split=False) == 1 + 80 + 3
    assert simulate(schedule, costs).step >= 84
