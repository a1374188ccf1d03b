"""Sums of gradients beside the compute, and updates behind everything."""

from __future__ import annotations

import pytest

from autopar.pipeline.schedules import build
from autopar.pipeline.simulate import Costs, StageCost, simulate


def test_hidden_where_a_worker_still_has_work() -> None:
    """GPipe on 2 workers, F = 1, B = 2, 4 microbatches: stage 1 is through at 13, stage 0 at 15."""
    schedule = build("gpipe", 2, 4)
    plain = simulate(schedule, Costs((StageCost(1, 1, 1),) * 2))
    assert plain.finished == (15, 13)
    costs = Costs((StageCost(1, 1, 1, reduction=0.5), StageCost(1, 1, 1, reduction=2)))
    summed = simulate(schedule, costs)
    assert [(r.stage, r.start, r.end) for r in summed.reductions] == [(1, 13, 15), (0, 15, 15.5)]
    assert summed.step == 15.5
    assert summed.busy == plain.busy


def test_two_stages_of_a_worker_one_after_the_other() -> None:
    """The second stage's sum runs beside the first stage's last backwards; they never overlap."""
    schedule = build("interleaved", 2, 2)
    costs = Costs((StageCost(1, 1, 1, reduction=10),) * 4)
    simulated = simulate(schedule, costs)
    ends = {run.action: run.end for row in simulated.ran for run in row}
    last = {s: max(e for a, e in ends.items() if a.stage == s) for s in range(4)}
    spans = {r.stage: (r.start, r.end) for r in simulated.reductions}
    assert spans[2] == (last[2], last[2] + 10) and last[2] < last[0]
    assert spans[0] == (last[2] + 10, last[2] + 20)
    assert simulated.step == max(end for _, end in spans.values())


def test_replicas_wait_for_each_other() -> None:
    schedule = build("chimera", 2, 4)
    stages = (StageCost(1, 1, 1, reduction=1), StageCost(3, 1, 1, reduction=1))
    simulated = simulate(schedule, Costs(stages))
    ready = [0.0, 0.0]
    for row in simulated.ran:
        for run in row:
            ready[run.action.stage] = max(ready[run.action.stage], run.end)
    assert {r.stage: r.workers for r in simulated.reductions} == {0: (0, 1), 1: (0, 1)}
    first, second = simulated.reductions
    assert first.start == ready[first.stage] == min(ready)
    assert second.start == max(ready[second.stage], first.end)


def test_updates_come_last() -> None:
    schedule = build("1f1b", 2, 2)
    costs = Costs((StageCost(1, 1, 1, reduction=1, update=3), StageCost(1, 1, 1, update=4)))
    assert simulate(schedule, costs).finished == pytest.approx((9 + 1 + 3, 7 + 4))


def test_updates_inside_an_asynchronous_schedule_are_paid_where_they_are() -> None:
    schedule = build("pipedream", 1, 3)
    simulated = simulate(schedule, Costs((StageCost(1, 1, 1, reduction=1, update=3),)))
    assert simulated.step == 3 * (3 + 4)
    assert simulated.reductions == ()
    assert simulated.busy == (21,)
