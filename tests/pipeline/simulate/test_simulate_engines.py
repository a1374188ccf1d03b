"""Two engines agree, with each other, with the definition, and with examples by hand."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.errors import ScheduleError
from autopar.pipeline.schedules import SCHEDULES, Edge, Schedule, build, chain, lower
from autopar.pipeline.simulate import (
    Costs,
    Link,
    Network,
    Simulated,
    StageCost,
    Traffic,
    own_links,
    simulate,
    step_seconds,
    uniform,
)
from autopar.pipeline.simulate.engines import by_events, in_order, one_sender_each
from autopar.pipeline.simulate.program import durations, program, ways
from tests.pipeline.schedules.drawing import schedules
from tests.pipeline.simulate.drawing_costs import random_costs

Drawn = tuple[Schedule, tuple[Edge, ...]]


def seconds_of(cost: StageCost, kind: str) -> float:
    return {
        "F": cost.forward, "B": cost.whole_backward, "I": cost.input_gradient,
        "W": cost.weight_gradient,
    }[kind]  # fmt: skip


@given(schedules(), st.randoms(use_true_random=False))
def test_times_are_the_least_that_the_definition_allows(drawn: Drawn, random: Random) -> None:
    """Without contention: starts = max(end before in the list, ends of what is needed + transfer)."""
    schedule, edges = drawn
    costs = random_costs(random, schedule.stages, len(schedule.workers), edges, contention=False)
    costs = Costs(costs.stages, costs.traffic)  # Transfers take no time.
    simulated = simulate(schedule, costs)
    ends = {run.action: run.end for row in simulated.ran for run in row}
    starts = {run.action: run.start for row in simulated.ran for run in row}
    by_key = {(a.kind, a.stage, a.microbatch): a for a in ends}
    for row in schedule.workers:
        for before, action in zip((None, *row), row, strict=False):
            least = [0.0 if before is None else ends[before]]
            if action.kind == "F":
                least += [
                    ends[by_key["F", e.source, action.microbatch]]
                    for e in edges
                    if e.target == action.stage
                ]
            elif action.kind in ("B", "I"):
                for e in edges:
                    if e.source == action.stage and e.gradient:
                        later = by_key.get(("B", e.target, action.microbatch))
                        later = later or by_key["I", e.target, action.microbatch]
                        least.append(ends[later])
            assert starts[action] == max(least)
            cost = costs.stages[action.stage]
            assert ends[action] == starts[action] + seconds_of(cost, action.kind)


@given(schedules(), st.randoms(use_true_random=False))
def test_engines_agree(drawn: Drawn, random: Random) -> None:
    """Wherever both apply, to the last bit."""
    schedule, edges = drawn
    costs = random_costs(random, schedule.stages, len(schedule.workers), edges)
    flat = program(schedule, tuple(t.edge for t in costs.edges))
    lanes = ways(flat.lanes, costs)
    links = len(costs.network.links)
    events = by_events(flat, durations(costs), lanes, links)
    if one_sender_each(flat, lanes):
        passed = in_order(flat, durations(costs), lanes, links)
        assert passed[:2] == events[:2]
        assert sorted(passed[2]) == sorted(events[2])


@given(schedules(), st.randoms(use_true_random=False))
def test_links_carry_one_transfer_at_a_time_and_nothing_goes_back_in_time(
    drawn: Drawn, random: Random
) -> None:
    schedule, edges = drawn
    costs = random_costs(random, schedule.stages, len(schedule.workers), edges)
    simulated = simulate(schedule, costs)
    ran = [run for row in simulated.ran for run in row]
    lanes = ways(simulated.program.lanes, costs)
    on_link: dict[int, list[tuple[float, float]]] = {}
    for producer, consumer, lane, start, end in simulated.times[2]:
        way = lanes[lane]
        assert ran[producer].end <= start <= end <= ran[consumer].start
        assert end == pytest.approx(start + way.occupied + way.latency)
        for link in way.links:
            on_link.setdefault(link, []).append((start, start + way.occupied))
    for used in on_link.values():
        used.sort()
        for (_, end), (start, _) in itertools.pairwise(used):
            assert start >= end
    for row in simulated.ran:
        for before, after in itertools.pairwise(row):
            assert after.start >= before.end


@given(schedules())
def test_writing_transfers_out_changes_nothing(drawn: Drawn) -> None:
    schedule, edges = drawn
    costs = Costs(
        uniform(schedule.stages).stages,
        tuple(Traffic(e.source, e.target, 1.0, 1.0 if e.gradient else None) for e in edges),
    )
    assert step_seconds(lower(schedule, edges), costs) == step_seconds(schedule, costs)


def crossing(network: Network) -> Simulated:
    """Workers 0 and 1 both send 10 bytes after one second, to workers 2 and 3."""
    schedule = Schedule.parse(
        "crossing stages=4 microbatches=1\n0: 0F0 0B0\n1: 1F0 1B0\n2: 2F0 2B0\n3: 3F0 3B0"
    )
    traffic = (Traffic(0, 2, 10.0, None), Traffic(1, 3, 10.0, None))
    return simulate(schedule, Costs((StageCost(1, 1, 1),) * 4, traffic, network))


def forwards(simulated: Simulated) -> list[float]:
    return [row[0].start for row in simulated.ran]


def test_contention_by_hand() -> None:
    fast = Link(latency=0.5, bandwidth=10.0)
    assert forwards(crossing(Network())) == [0, 0, 1, 1]
    assert forwards(crossing(own_links(4, fast))) == [0, 0, 2.5, 2.5]
    # One link for both pairs: the second waits until the first has left, not until it has arrived.
    shared = Network((fast,), {(0, 2): (0,), (1, 3): (0,)})
    assert forwards(crossing(shared)) == [0, 0, 2.5, 3.5]
    # Two links in a row, the second one shared: the pace of the slowest, both latencies.
    slow = Link(latency=0.25, bandwidth=5.0)
    chained = Network((fast, fast, slow), {(0, 2): (0, 2), (1, 3): (1, 2)})
    assert forwards(crossing(chained)) == [0, 0, 3.75, 5.75]


def test_half_and_full_duplex_by_hand() -> None:
    """Worker 0 sends an activation while worker 1 sends a gradient."""
    schedule = Schedule.parse(
        "duplex stages=2 microbatches=2\n0: 0F0 0F1 0B0 0B1\n1: 1F0 1B0 1F1 1B1"
    )
    stages = (StageCost(1, 1, 1), StageCost(1, 0.5, 0.5))
    traffic = (Traffic(0, 1, 1.0, 1.0),)
    link = Link(0.0, 1.0)
    full = simulate(schedule, Costs(stages, traffic, own_links(2, link)))
    # F0 0-1, sent 1-2; F1 1-2, sent 2-3; 1F0 2-3, 1B0 3-4, its gradient 4-5; 0B0 5-7.
    assert [run.start for run in full.ran[0]] == [0, 1, 5, 7]
    half = simulate(
        schedule, Costs(stages, traffic, Network((link,), {(0, 1): (0,), (1, 0): (0,)}))
    )
    assert [run.start for run in half.ran[0]] == [0, 1, 5, 7]
    # With a slower link the two directions meet.
    slow = Link(0.0, 0.4)
    full = simulate(schedule, Costs(stages, traffic, own_links(2, slow)))
    half = simulate(
        schedule, Costs(stages, traffic, Network((slow,), {(0, 1): (0,), (1, 0): (0,)}))
    )
    # Activations leave 1-3.5 and 3.5-6; the gradient is there at 5.5 and waits until 6 on half duplex.
    assert full.ran[0][2].start == 8.0 and half.ran[0][2].start == 8.5


def test_what_is_there_first_goes_first() -> None:
    """Two senders, one link: the order is that of time, not of workers."""
    schedule = Schedule.parse(
        "order stages=4 microbatches=1\n0: 0F0 0B0\n1: 1F0 1B0\n2: 2F0 2B0\n3: 3F0 3B0"
    )
    stages = (StageCost(2, 1, 1), StageCost(1, 1, 1), StageCost(1, 1, 1), StageCost(1, 1, 1))
    traffic = (Traffic(0, 2, 3.0, None), Traffic(1, 3, 3.0, None))
    network = Network((Link(0, 1),), {(0, 2): (0,), (1, 3): (0,)})
    simulated = simulate(schedule, Costs(stages, traffic, network))
    assert forwards(simulated) == [0, 0, 7, 4]


def test_bubbles_add_up() -> None:
    simulated = simulate(build("1f1b", 4, 8), uniform(4))
    for bubble, busy, rate in zip(
        simulated.bubbles, simulated.busy, simulated.bubble_rates, strict=True
    ):
        assert bubble + busy == simulated.step
        assert rate == bubble / simulated.step


def test_costs_must_be_for_all_stages() -> None:
    with pytest.raises(ScheduleError, match="1f1b has 4 stages, but costs are given for 3"):
        simulate(build("1f1b", 4, 8), uniform(3))


@pytest.mark.parametrize("name", SCHEDULES)
def test_faster_stages_never_take_longer_where_no_link_is_shared(name: str) -> None:
    """Longest paths are monotone; a test of both engines on every schedule."""
    schedule = build(name, 4, 8)
    traffic = tuple(Traffic(e.source, e.target, 1.0, 1.0) for e in chain(schedule.stages))
    slow = Costs((StageCost(1, 1, 1),) * schedule.stages, traffic, own_links(4, Link(0.1, 10)))
    fast = Costs((StageCost(0.9, 1, 0.8),) * schedule.stages, traffic, own_links(4, Link(0.1, 20)))
    assert step_seconds(schedule, fast) <= step_seconds(schedule, slow)
