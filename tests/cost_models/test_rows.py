"""What a row of calls takes: on CPUs in the core's seconds, times how long each of them lasts."""

from __future__ import annotations

import os
import time

import pytest
import torch

from cost_models.calibrate.effort import QUICK
from cost_models.calibrate.processes import run
from cost_models.calibrate.rows import computing_seconds, crowd_of, sustained_seconds

ASLEEP_S = 0.01


def on_one_core() -> float:
    """Both processes of the test take turns there."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return crowd_of(QUICK)


def asleep() -> tuple[float, float]:
    actions = {0: lambda: time.sleep(ASLEEP_S)}
    return computing_seconds(actions, QUICK, 1.0)[0], sustained_seconds(actions, QUICK)[0]


def twice() -> tuple[float, float]:
    matrix = torch.randn(256, 256)
    actions = {0: lambda: matrix @ matrix}
    return computing_seconds(actions, QUICK, 1.0)[0], computing_seconds(actions, QUICK, 100.0)[0]


@pytest.mark.slow
def test_seconds_of_a_shared_core_last_longer() -> None:
    assert run(2, on_one_core) > 1.5


@pytest.mark.slow
def test_what_is_computed_is_counted_by_the_core() -> None:
    core_s, whole_s = run(2, asleep)
    assert core_s < ASLEEP_S / 2 < ASLEEP_S <= whole_s


def test_a_second_lasts_as_long_as_the_crowd_lets_it() -> None:
    alone_s, crowded_s = run(1, twice)
    assert 30 * alone_s < crowded_s < 300 * alone_s
