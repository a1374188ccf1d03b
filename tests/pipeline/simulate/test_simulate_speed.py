"""The planner calls the simulator thousands of times."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from autopar.pipeline.schedules import build
from autopar.pipeline.simulate import Costs, Link, StageCost, Traffic, own_links, step_seconds

STAGES, MICROBATCHES = 16, 128


def cpu_seconds(call: Callable[[], object]) -> float:
    """Of this process: others may take the core meanwhile."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def one_addition_per_action() -> float:
    """A loop over as many actions as a schedule of forwards and backwards has."""
    end = 0.0
    for action in range(2 * STAGES * MICROBATCHES):
        end = max(end + 1.0, float(action))
    return end


@pytest.mark.parametrize("name", ("1f1b", "zb-h2"))
def test_sixteen_workers_and_128_microbatches(name: str) -> None:
    """With new costs for a schedule that was seen before it takes a few additions per action (2.3 to
    2.7 of Python's where this was measured)."""
    schedule = build(name, STAGES, MICROBATCHES)
    traffic = tuple(Traffic(s, s + 1, 1.0, 1.0) for s in range(STAGES - 1))
    links = own_links(STAGES, Link(0.1, 9))
    took, loops = [], []
    for number in range(20):
        costs = Costs((StageCost(1.0 + number, 1.0, 1.0),) * STAGES, traffic, links)
        took.append(cpu_seconds(lambda costs=costs: step_seconds(schedule, costs)))
        loops.append(cpu_seconds(one_addition_per_action))
    assert min(took) < 8 * min(loops)
