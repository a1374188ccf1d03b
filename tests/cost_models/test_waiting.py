"""How long ranks wait for each other: lines through what was measured, and clocks of several hosts."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from cost_models.calibrate.processes import run
from cost_models.calibrate.rows import longest
from cost_models.calibrate.waiting import Waiting, waiting
from cost_models.collectives import lateness
from cost_models.machine import Device


def test_two_lengths_of_a_turn_make_a_line() -> None:
    found = Waiting.through((0.01, 0.002), (0.11, 0.012), 2)
    assert (found.behind, found.late_s) == pytest.approx((0.1, 0.001))
    among_eight = Waiting.through((0.01, 0.002), (0.11, 0.012), 8)
    assert among_eight.late_s == pytest.approx(0.001 / lateness(8))


def test_the_last_of_many_comes_later() -> None:
    """Expected maxima of normal variables (Teichroew 1956): 0, 0.564, 0.846, 1.029, 1.424, 1.766."""
    maxima = {1: 0.0, 2: 0.5642, 3: 0.8463, 4: 1.0294, 8: 1.4236, 16: 1.7660}
    for ranks, latest in maxima.items():
        assert lateness(ranks) == pytest.approx(latest / maxima[2], rel=0.05)


@pytest.mark.parametrize(
    ("short_wait_s", "long_wait_s", "expected"),
    [(0.003, 0.001, (0.0, 0.003)), (0.0, 0.02, (0.2, 0.0)), (-0.001, -0.002, (0.0, 0.0))],
)
def test_noise_makes_no_figure_negative(
    short_wait_s: float, long_wait_s: float, expected: tuple[float, float]
) -> None:
    found = Waiting.through((0.01, short_wait_s), (0.11, long_wait_s), 2)
    assert (found.behind, found.late_s) == pytest.approx(expected)


@pytest.mark.slow
def test_a_rank_waits_for_one_that_rests() -> None:
    """The second one rests as long as it multiplies, and 10 ms more in each turn.

    Of five rows, for a core that does something else for a while makes one row's collectives long.
    """
    found = run(2, _one_rests)
    assert 0.1 < found.behind < 2
    assert 0.005 < found.late_s < 0.2


def _one_rests() -> Waiting:
    if dist.get_rank() == 1:
        matmul, all_reduce = torch.matmul, dist.all_reduce
        computed: list[bool] = []

        def slow(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
            computed.append(True)
            begun = time.perf_counter()
            found = matmul(one, two)
            time.sleep(time.perf_counter() - begun)
            return found

        def late(message: torch.Tensor) -> None:
            time.sleep(0.01 if computed else 0.0)
            computed.clear()
            all_reduce(message)

        torch.matmul, dist.all_reduce = slow, late
    return waiting(5)


def test_a_row_lasts_as_long_as_on_the_host_where_it_lasts_longest() -> None:
    """The second host's clock is a day ahead."""
    assert longest([(0, 10.0, 11.0), (0, 10.5, 12.0), (1, 86410.0, 86413.0)]) == 3.0


def test_a_paced_device_is_slower_in_everything() -> None:
    own = Device("d", "cpu", 1e9, {"float32": 3e9}, 6e9, launch_s=1e-5, cache_bytes_per_s=9e9)
    assert own.paced == own
    slow = Device(
        "d", "cpu", 1e9, {"float32": 3e9}, 6e9, launch_s=1e-5, cache_bytes_per_s=9e9, behind=0.5
    ).paced
    assert slow.flops_per_s["float32"] == 2e9 and slow.paced == slow
    assert (slow.bytes_per_s, slow.cache_bytes_per_s) == (4e9, 6e9)
    assert slow.launch_s == pytest.approx(1.5e-5)
