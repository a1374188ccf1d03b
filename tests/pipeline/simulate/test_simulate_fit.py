"""Schedules made to measure: valid, within memory, above the bound, and often better than named ones."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.errors import ScheduleError
from autopar.pipeline.schedules import Edge, build, check, lower
from autopar.pipeline.simulate import (
    Costs,
    Link,
    StageCost,
    Traffic,
    fit,
    lower_bound,
    own_links,
    simulate,
    uniform,
)
from autopar.pipeline.simulate.fit import named
from tests.pipeline.simulate.drawing_costs import random_costs


@settings(max_examples=15)
@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 5),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_valid_and_within_memory(
    stages: int, workers: int, microbatches: int, split: bool, random: Random
) -> None:
    """Any DAG, any placement, memory from just enough for one microbatch to enough for all."""
    workers = min(workers, stages)
    placement = [*range(workers), *(random.randrange(workers) for _ in range(stages - workers))]
    random.shuffle(placement)
    edges = tuple(
        Edge(a, b, random.random() < 0.8)
        for b in range(stages)
        for a in range(b)
        if random.random() < 0.6
    )
    costs = random_costs(random, stages, workers, edges)
    limits = []
    for worker in range(workers):
        held = [c for c, on in zip(costs.stages, placement, strict=True) if on == worker]
        rest = sum(c.static for c in held) + max(c.working for c in held)
        limits.append(rest + sum(c.kept for c in held) * random.uniform(1, microbatches))
    found = fit(costs, placement, microbatches, limits, split)
    check(found.schedule, edges)
    check(lower(found.schedule, edges), edges)
    assert found.schedule.splits_backward <= split
    assert all(
        p <= limit * (1 + 1e-9) for p, limit in zip(found.simulated.peaks, limits, strict=True)
    )
    holders = [(worker,) for worker in placement]
    assert found.simulated.step >= lower_bound(costs, holders, microbatches, split) * (1 - 1e-12)


@pytest.mark.parametrize("seed", range(28, 36))
def test_one_worker_never_gets_stuck(seed: int) -> None:
    """A stage whose gradient nobody waits for stays behind, and its memory was given to others."""
    random = Random(seed)
    edges = (Edge(0, 1), Edge(0, 2), Edge(1, 2, gradient=False), Edge(1, 3))
    costs = random_costs(random, 4, 1, edges)
    kept = sum(cost.kept for cost in costs.stages)
    rest = sum(c.static for c in costs.stages) + max(c.working for c in costs.stages)
    limit = rest + kept * random.uniform(1, 3)
    found = fit(costs, [0] * 4, 5, [limit], split=random.random() < 0.5)
    check(found.schedule, edges)
    assert found.simulated.peaks[0] <= limit * (1 + 1e-9)


def unequal(random: Random, stages: int) -> Costs:
    costs = (
        StageCost(
            random.uniform(0.5, 1.5),
            random.uniform(0.5, 1.5),
            random.uniform(0.3, 1),
            kept=1,
            kept_for_weights=0.5,
        )
        for _ in range(stages)
    )
    traffic = tuple(Traffic(s, s + 1, 1.0, 1.0) for s in range(stages - 1))
    return Costs(tuple(costs), traffic, own_links(stages, Link(0.02, 20)))


@pytest.mark.thorough
def test_compared_with_those_with_names_in_their_memory() -> None:
    """The table of docs/schedules.md: steps as shares of the named schedule's, on unequal stages."""
    page = (Path(__file__).parents[3] / "docs" / "schedules.md").read_text()
    for name in ("1f1b", "zb-h1", "zb-h2"):
        ratios = []
        for seed in range(12):
            random = Random(seed)
            costs = unequal(random, random.choice((3, 4, 6)))
            workers = len(costs.stages)
            other = simulate(build(name, workers, 8), costs)
            found = fit(costs, range(workers), 8, other.peaks, rivals=())
            ratios.append(found.simulated.step / other.step)
        figures = (sum(ratios) / 12, min(ratios), max(ratios))
        assert f"| {name} | {' | '.join(f'{figure:.1%}' for figure in figures)} |" in page


def test_never_worse_than_one_with_a_name() -> None:
    for seed in range(4):
        costs = unequal(Random(seed), 4)
        for name in ("1f1b", "zb-h1", "zb-h2"):
            rival = simulate(build(name, 4, 6), costs)
            assert fit(costs, range(4), 6, rival.peaks).simulated.step <= rival.step


def test_rivals_with_names_stand_where_the_stages_are() -> None:
    def names(placement: list[int], split: bool = True) -> set[str]:
        return {each.name for each in named(uniform(len(placement)), placement, 8, split)}

    one_each = {"naive", "gpipe", "1f1b", "eager-1f1b", "interleaved"}
    assert names([0, 1, 2]) == one_each | {"zb-h1", "zb-h2"}
    assert names([0, 1, 2], split=False) == one_each
    assert names([0, 1, 0, 1]) == {"interleaved"}
    assert names([0, 1, 1, 0]) == {"zb-v", "dualpipe-v"}
    assert names([1, 0]) == names([0, 1, 1]) == set()


def test_a_rival_that_does_not_fit_is_left_out() -> None:
    costs = Costs((StageCost(1, 1, 1, kept=1),) * 4)
    found = fit(costs, range(4), 6, [4] * 4, rivals=[build("gpipe", 4, 6)])
    assert found.schedule.name == "fitted" and found.policy is not None
    assert max(found.simulated.peaks) <= 4
    with pytest.raises(ScheduleError, match="zb-v holds stages on"):
        fit(costs, range(4), 6, rivals=[build("zb-v", 4, 6)])


def test_equal_stages_give_what_the_hand_made_ones_have() -> None:
    """With the memory of 1F1B its step; of ZB-H2, the bound."""
    one = Costs((StageCost(1, 1, 1, kept=1, kept_for_weights=1),) * 4)
    assert fit(one, range(4), 8, [4, 3, 2, 1], split=False).simulated.step == 33
    assert fit(one, range(4), 8, [7] * 4).simulated.step == 27
    assert lower_bound(one, [(w,) for w in range(4)], 8) == 27


def test_several_stages_per_worker() -> None:
    """A V within the memory of 1F1B: beats 1F1B by far, and is within 4 % of ZB-V, made for it."""
    made = build("zb-v", 4, 8)
    costs = Costs((StageCost(0.5, 0.5, 0.5, kept=1, kept_for_weights=0.5),) * 8)
    v = simulate(made, costs)
    found = fit(costs, [held[0] for held in made.holders], 8, v.peaks, rivals=())
    assert v.step <= found.simulated.step <= 1.04 * v.step
    assert found.simulated.step < simulate(build("1f1b", 4, 8), uniform(4)).step * 0.85


def test_memory_for_less_than_one_microbatch() -> None:
    costs = Costs((StageCost(1, 1, 1, kept=5, static=10, working=2),) * 2)
    fit(costs, [0, 1], 4, [17, 17])
    with pytest.raises(
        ScheduleError, match=r"Worker 1 needs 17 bytes for one microbatch, more .* of 16"
    ):
        fit(costs, [0, 1], 4, [17, 16])


def test_placement_must_fit() -> None:
    with pytest.raises(ScheduleError, match="2 stages are placed, 3 have costs"):
        fit(uniform(3), [0, 1], 4)
    with pytest.raises(ScheduleError, match="Worker 1 holds no stage"):
        fit(uniform(3), [0, 2, 2], 4)
