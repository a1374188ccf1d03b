"""Against brute force over cuts, submeshes, ways, microbatches and schedules, all simulated."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.errors import InfeasibleError, PlanError
from autopar.pipeline.planner import (
    EAGER,
    FAMILIES,
    GPIPE,
    ONE_F_ONE_B,
    Family,
    StageOption,
    StagePlan,
    StageProblem,
    StageTable,
    is_hopeless,
    plan_stages,
)
from autopar.pipeline.planner.families import family
from autopar.pipeline.planner.period import bracketed, possible
from autopar.pipeline.planner.play import most_held, numbered
from autopar.pipeline.planner.priced import Fitting, Priced, price
from autopar.pipeline.planner.relaxation import flush_bound_of, makespan_bound_of, quick_bound_of
from autopar.pipeline.planner.search import least_aim
from autopar.pipeline.planner.simulated import costs_of, simulated_step
from autopar.pipeline.planner.table import no_transfers, ranges
from autopar.pipeline.simulate.simulate import simulate
from tests.pipeline.planner.random_tables import every_plan, least_of, random_problem

ALL = tuple(FAMILIES.values())
seeds = st.integers(0, 10**6)


@pytest.mark.thorough
@settings(max_examples=60)
@given(seeds, st.sampled_from(ALL))
def test_no_simulation_undercuts_a_bound(seed: int, chosen: Family) -> None:
    for priced in price(random_problem(seed, (chosen,))):
        steps = [simulated_step(priced, stages) for stages in every_plan(priced)]
        least = min(steps, default=math.inf)
        for bound in (quick_bound_of(priced), makespan_bound_of(priced)):
            assert bound <= least * (1 + 1e-9)
        if least < math.inf:
            assert flush_bound_of(priced, 2 * least) <= least * (1 + 1e-9)
            assert possible(priced, least * (1 + 1e-9)) is not None


@settings(max_examples=60)
@given(seeds, st.sampled_from(ALL))
def test_the_search_is_exact_for_its_aim(seed: int, chosen: Family) -> None:
    for priced in price(random_problem(seed, (chosen,))):
        plans = [plan for plan in every_plan(priced) if all(n in priced.places for *_, n in plan)]
        least = least_of(priced.aim(plan) for plan in plans)
        found = least_aim(priced)
        if found is None:
            assert least == math.inf
        else:
            assert found.aim_s == pytest.approx(least) == priced.aim(found.stages)
            assert found.bound_s <= least * (1 + 1e-9)


@settings(max_examples=40)
@given(seeds)
def test_ways_that_are_dropped_are_no_loss(seed: int) -> None:
    """A way that another one beats in every figure is in no plan that must be."""
    for priced in price(random_problem(seed, (ONE_F_ONE_B,))):
        every = least_of(simulated_step(priced, plan) for plan in every_plan(priced))
        kept = least_of(
            simulated_step(priced, plan)
            for plan in every_plan(priced)
            if all(n in priced.places for *_, n in plan)
        )
        assert kept == pytest.approx(every)


@pytest.mark.slow
@settings(max_examples=60)
@given(seeds)
def test_the_plan_is_near_the_best_and_above_its_bound(seed: int) -> None:
    problem = random_problem(seed, (ONE_F_ONE_B, GPIPE, EAGER))
    least = least_of(
        simulated_step(priced, plan) for priced in price(problem) for plan in every_plan(priced)
    )
    if least == math.inf:
        with pytest.raises(InfeasibleError):
            plan_stages(problem)
        return
    plan = plan_stages(problem)
    assert plan.bound_s <= least * (1 + 1e-9)
    assert least * (1 - 1e-9) <= plan.step_s <= least * 1.5
    assert StagePlan.from_json(plan.to_json()) == plan
    # With everything simulated it is the best.
    assert plan_stages(problem, keep=10**6).step_s <= plan.step_s


@pytest.mark.thorough
@settings(max_examples=60)
@given(seeds, st.floats(0.3, 1.5))
def test_nothing_hopeless_could_have_won(seed: int, share: float) -> None:
    """What is called hopeless is: no plan takes less.  Far below every bound, it is called so."""
    problem = random_problem(seed, (ONE_F_ONE_B, GPIPE))
    least = least_of(
        simulated_step(priced, plan) for priced in price(problem) for plan in every_plan(priced)
    )
    if least < math.inf:
        assert not is_hopeless(problem, share * least) or share <= 1 + 1e-9
        assert is_hopeless(problem, plan_stages(problem).bound_s / 2)


@settings(max_examples=60)
@given(seeds, st.sampled_from(ALL))
def test_ways_that_fit_are_those_whose_memory_does(seed: int, chosen: Family) -> None:
    """The least of them, however few: sorted by what fits, against a look at each."""
    for priced in price(random_problem(seed, (chosen,))):
        stacks = [stack for stack in priced.stacks if np.isfinite(stack.micro).any()]
        for position in range(1, priced.most_stages + 1):
            steps = Fitting(priced, None, priced.flights)(position)
            held = priced.in_flight(position)
            for stack, step in zip(stacks, steps, strict=True):
                flight = priced.flights[priced.stacks.index(stack)]
                least = np.where(stack.flights >= held, flight, np.inf).min(axis=0)
                whole = stack.spread(least, priced.problem.positions)
                np.testing.assert_array_equal(step.head, whole)


@settings(max_examples=60)
@given(seeds, st.sampled_from(ALL))
def test_the_quick_play_is_the_simulators(seed: int, chosen: Family) -> None:
    for priced in price(random_problem(seed, (chosen,))):
        for stages in list(every_plan(priced))[:5]:
            schedule = priced.family.make(len(stages), priced.table.microbatches)
            done = simulate(schedule, costs_of(priced.table, stages))
            step = simulated_step(priced, stages)
            if max(done.peaks) <= priced.problem.memory_nbytes:
                assert step == pytest.approx(done.step)
            else:
                assert step == math.inf


@pytest.mark.parametrize("name", FAMILIES)
def test_in_flight_is_what_the_lists_hold(name: str) -> None:
    for stages in (1, 2, 5):
        for many in (1, 3, 4, 12):
            lists = numbered(family(name).make(stages, many))
            for stage, row in enumerate(lists):
                held = max(flying for flying, _ in most_held(row))
                assert held == family(name).in_flight(stages - stage, many)


def test_nothing_offered_is_said() -> None:
    problem = random_problem(2, (ONE_F_ONE_B,))
    tables = tuple(
        replace(t, ways=tuple(replace(w, forward_s=w.forward_s * np.inf) for w in t.ways))
        for t in problem.tables
    )
    with pytest.raises(InfeasibleError, match="offers any range"):
        plan_stages(replace(problem, tables=tables))


def test_a_forced_number_of_stages_and_an_objective_of_ones_own() -> None:
    problem = random_problem(2, (ONE_F_ONE_B,))
    plan = plan_stages(problem, objective=lambda priced, stages: float(len(stages)))
    assert plan.proof == "none" and plan.bound_s == 0
    assert plan.step_s == len(plan.stages)


def test_bad_tables_are_named() -> None:
    problem = random_problem(3, (GPIPE,))
    table = problem.tables[0]
    way = table.ways[0]

    def broken(**changes: object) -> None:
        ways = (replace(way, **changes), *table.ways[1:])
        replace(problem, tables=(replace(table, ways=ways),)).check()

    with pytest.raises(PlanError, match="at least 0"):
        broken(kept_nbytes=way.kept_nbytes - 100)
    with pytest.raises(PlanError, match="has shape"):
        broken(rest_nbytes=np.zeros((2, 1)))
    with pytest.raises(PlanError, match="borders"):
        broken(entry=9)
    with pytest.raises(PlanError, match=r"the seconds at \(0, 0\) are not a number"):
        broken(forward_s=np.full_like(way.forward_s, np.nan))
    with pytest.raises(PlanError, match="does not end behind"):
        broken(
            forward_s=np.ones_like(way.forward_s),
            input_grad_s=np.ones_like(way.forward_s),
            weight_grad_s=np.ones_like(way.forward_s),
        )
    with pytest.raises(PlanError, match="keeps more for weight"):
        broken(kept_for_weights_nbytes=way.kept_nbytes + 1)
    with pytest.raises(PlanError, match="at least one of them"):
        replace(problem, tables=(replace(table, ways=()),)).check()
    with pytest.raises(PlanError, match="no family"):
        family("2f2b")


def test_what_does_not_fit_is_said() -> None:
    problem = random_problem(4, (ONE_F_ONE_B,))
    with pytest.raises(InfeasibleError, match="bytes per device"):
        plan_stages(replace(problem, memory_nbytes=1e-9))
    with pytest.raises(InfeasibleError, match="fills 1000 devices"):
        plan_stages(replace(problem, devices=1000))


def test_a_layer_that_no_way_offers_is_named() -> None:
    problem = random_problem(4, (ONE_F_ONE_B,))

    def without_first(way: StageOption) -> StageOption:
        forward = way.forward_s.copy()
        forward[0, :] = np.inf
        return replace(way, forward_s=forward)

    tables = tuple(
        replace(table, ways=tuple(map(without_first, table.ways))) for table in problem.tables
    )
    with pytest.raises(InfeasibleError, match="no way offers a range with layer 0"):
        plan_stages(replace(problem, tables=tables))


def chain(
    layers: int, many: int, seconds: list[float], transfer_s: float, chosen: Family
) -> Priced:
    """One layer and one device a stage, one way, slow transfers."""
    per_layer = [[part * (1 + at % 3) for at in range(layers)] for part in seconds]
    parts = [
        ranges(layers + 1, lambda a, b, p=part: sum(p[a:b]) if b == a + 1 else np.inf, np.inf)
        for part in per_layer
    ]
    nothing = np.zeros((layers + 1, layers + 1))
    way = StageOption("only", 1, 1, *parts, nothing, nothing, nothing, nothing, nothing)
    cuts = np.full((layers + 1, 1, 1), transfer_s)
    table = StageTable(many, (way,), cuts, cuts)
    (priced,) = price(StageProblem(layers + 1, layers, 1.0, (table,), (chosen,)).check())
    return priced


@pytest.mark.parametrize("chosen", ALL, ids=lambda chosen: chosen.name)
@pytest.mark.parametrize("transfer_s", [0.0, 0.3, 2.0])
def test_windows_hold_and_bind(chosen: Family, transfer_s: float) -> None:
    """The bound by windows is below the one plan's step, and near it with many microbatches."""
    for layers in (2, 3, 5):
        for many in (2, 5, 8, 60):
            priced = chain(layers, many, [1.0, 1.0, 0.5], transfer_s, chosen)
            step = simulated_step(priced, tuple((at, at + 1, 0) for at in range(layers)))
            assert possible(priced, step) is not None
            bound, _ = bracketed(priced, 0.0, step, 30)
            assert bound <= step
            if many == 60 and not chosen.splits:
                assert bound >= 0.8 * step


def test_a_window_by_hand() -> None:
    """Two stages of 1F1B: both and the transfers between, 2 + 4 + 6 s, for every two microbatches."""
    priced = chain(2, 9, [1.0, 1.0, 0.0], 3.0, ONE_F_ONE_B)
    # Periods up to T / 9 at the last stage and T / 8 before it: 12 = T / 8 + T / 9.
    assert possible(priced, 50.83) is not None
    assert possible(priced, 50.82) is None
    assert simulated_step(priced, ((0, 1, 0), (1, 2, 0))) >= 50.83


@pytest.mark.parametrize(("split_s", "schedule"), [(0.0, "zb-h1"), (0.1, "zb-h1"), (1.0, "1f1b")])
def test_a_split_backward_has_its_price(split_s: float, schedule: str) -> None:
    """Four stages: ZB-H1 saves them two weight gradients each, unless it takes as much to split."""
    nothing = np.zeros((5, 5))
    unit = ranges(5, lambda a, b: float(b - a) if b == a + 1 else np.inf, np.inf)
    way = StageOption(
        "only", 1, 1, unit, unit, unit, *[nothing] * 5, split_s=ranges(5, lambda a, b: split_s)
    )
    table = StageTable(8, (way,), no_transfers(5), no_transfers(5))
    families = (ONE_F_ONE_B, FAMILIES["zb-h1"])
    plan = plan_stages(StageProblem(5, 4, 1.0, (table,), families))
    assert plan.schedule == schedule
    apart = split_s if schedule == "zb-h1" else 0.0
    assert [stage.input_grad_s for stage in plan.stages] == [1.0 + apart] * 4


def test_a_fast_way_that_needs_too_much_room_to_work_beats_nothing() -> None:
    nothing = np.zeros((2, 2))
    ways = tuple(
        StageOption(name, 1, 1, *[ranges(2, lambda a, b, s=s: s, np.inf)] * 3, *[nothing] * 2,
            ranges(2, lambda a, b, n=n: n), *[nothing] * 2)
        for name, s, n in (("fast", 1.0, 9.0), ("slow", 2.0, 1.0))
    )  # fmt: skip
    table = StageTable(1, ways, no_transfers(2), no_transfers(2))
    assert plan_stages(StageProblem(2, 1, 5.0, (table,), (GPIPE,))).stages[0].way == "slow"
    assert plan_stages(StageProblem(2, 1, 9.0, (table,), (GPIPE,))).stages[0].way == "fast"


@pytest.mark.parametrize("seed", range(40))
def test_one_stage_needs_no_ways_but_those_of_all_devices(seed: int) -> None:
    """Left out are only ways that no plan of one stage could take."""
    problem = random_problem(seed, (ONE_F_ONE_B, GPIPE))
    narrow = problem.of_one_stage().check()
    same = replace(problem, most_stages=1, families=problem.families[:1])
    try:
        expected = plan_stages(same)
    except InfeasibleError:
        with pytest.raises(InfeasibleError):
            plan_stages(narrow)
        return
    found = plan_stages(narrow)
    assert found.step_s == expected.step_s and found.bound_s == pytest.approx(expected.bound_s)
