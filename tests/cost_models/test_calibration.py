"""Calibration: fits recover known figures, a profile follows from times, a quick run works."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cost_models.calibrate import calibrate
from cost_models.calibrate.effort import QUICK, Effort
from cost_models.calibrate.fit import Line, fit_line, fit_rates, fit_sustained, rising
from cost_models.calibrate.measure import KINDS, Measured, combined, measure
from cost_models.calibrate.operators import Amount, samples
from cost_models.calibrate.processes import run
from cost_models.calibrate.profile import profile
from cost_models.calibrate.waiting import NO_WAITING, Waiting
from cost_models.curves import Direction
from cost_models.errors import CostModelError
from cost_models.hardware import Device, Hardware, load, parse, to_text
from cost_models.ops import op_seconds

SIZES = tuple(2**exponent for exponent in range(10, 25, 2))
LAUNCH_S, FLOPS_PER_S = 4e-6, 1e11
TRUE = Device(
    "cpu", "cpu", 1e9, {"float32": FLOPS_PER_S}, 8e9, launch_s=LAUNCH_S,
    cache_bytes=2**22, cache_bytes_per_s=4e10,
)  # fmt: skip


@given(
    latency_s=st.floats(min_value=1e-6, max_value=1e-2),
    bytes_per_s=st.floats(min_value=1e8, max_value=1e11),
)
def test_the_line_recovers_alpha_and_beta(latency_s: float, bytes_per_s: float) -> None:
    line = fit_line(SIZES, [latency_s + nbytes / bytes_per_s for nbytes in SIZES])
    assert line.latency_s == pytest.approx(latency_s, rel=1e-6)
    assert line.per_s == pytest.approx(bytes_per_s, rel=1e-6)
    assert line.error < 1e-6


@pytest.mark.parametrize("seed", range(5))
def test_the_line_survives_noise_and_says_so(seed: int) -> None:
    noise = np.random.default_rng(seed).uniform(0.9, 1.1, len(SIZES))
    line = fit_line(SIZES, [(1e-3 + n / 1e9) * f for n, f in zip(SIZES, noise, strict=True)])
    assert line.latency_s == pytest.approx(1e-3, rel=0.1)
    assert line.per_s == pytest.approx(1e9, rel=0.15)
    assert 0.01 < line.error < 0.25


def test_operators_that_are_timed_keep_their_results_until_the_next_are_made() -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    sample = next(each for each in samples([8], [2**12]) if each.amount.operator == "gelu")

    def call(*inputs: torch.Tensor) -> torch.Tensor:
        found = sample.call(*inputs)
        made.append(weakref.ref(found))
        return found

    forward, _ = replace(sample, call=call).actions()
    made.clear()
    forward()
    forward()
    alive = [each() is not None for each in made]
    assert alive == [False] * sample.copies + [True] * sample.copies


def test_operators_that_are_timed_read_more_than_a_cache_holds() -> None:
    """Copies of large ones do; small ones were mostly just made, and stay in a cache."""
    of = {s.amount.nbytes: s.copies for s in samples([8], [2**22]) if s.amount.operator == "mul"}
    assert of and all(nbytes * copies >= 2**25 for nbytes, copies in of.items())
    assert {sample.copies for sample in samples([8], [2**14])} == {16}


BURST_NBYTES, LIMITED_PER_S = 2**18, 25e6


def test_a_burst_does_not_hide_the_limit() -> None:
    """A token bucket lets the first 256 kB through at the host's speed."""

    def seconds(nbytes: int) -> float:
        return 1e-4 + max(nbytes / 5e8, (nbytes - BURST_NBYTES) / LIMITED_PER_S)

    limited = [seconds(nbytes) for nbytes in SIZES]
    assert fit_line(SIZES, limited).per_s > 5 * LIMITED_PER_S
    line = fit_sustained(SIZES, limited)
    assert line.per_s == pytest.approx(LIMITED_PER_S, rel=0.01)
    assert line.latency_s < 2e-4


@given(
    latency_s=st.floats(min_value=1e-6, max_value=1e-2),
    bytes_per_s=st.floats(min_value=1e8, max_value=1e11),
)
def test_without_a_burst_it_is_the_line(latency_s: float, bytes_per_s: float) -> None:
    times = [latency_s + nbytes / bytes_per_s for nbytes in SIZES]
    line = fit_sustained(SIZES, times)
    assert line.latency_s == pytest.approx(latency_s, rel=1e-3)
    assert line.per_s == pytest.approx(bytes_per_s, rel=1e-3)


@pytest.mark.parametrize("fit", [fit_line, fit_sustained])
@pytest.mark.parametrize("last_s", [1.5e-3, 2e-3, 2.0001e-3])
def test_where_times_do_not_rise_the_rate_is_what_the_largest_proves(
    fit: Callable[[list[float], list[float]], Line], last_s: float
) -> None:
    """Two sizes of a quick run, of which the second takes no longer, or as good as none."""
    line = fit([2**10, 2**18], [2e-3, last_s])
    assert line.at_least and line.per_s == 2**18 / last_s
    assert 1.5e-3 < line.latency_s <= 2.0001e-3 and line.error > 0.5
    assert not fit([2**10, 2**18], [2e-3, 2.1e-3]).at_least


def test_no_figure_of_a_flat_machine_is_a_fantasy() -> None:
    """All times the same, whatever the size: rates are what these prove."""

    def flat(busy: int) -> Measured:
        every = dict.fromkeys([2**10, 2**18], 1e-3)
        return replace(
            synthetic(1.0, False),
            matmul_s={"float32": dict.fromkeys([32, 128, 256], 1e-3)},
            elementwise_s=dict.fromkeys([2**14, 2**20], 1e-3),
            collectives={(kind, busy): every for kind in KINDS if busy > 1},
        )

    found = profile({1: flat(1), 2: flat(2)})
    device, link = found.device, found.intra_host
    assert device.flops_per_s["float32"] == pytest.approx(6 * 256**3 / 1e-3, rel=1e-2)
    assert device.bytes_per_s <= device.cache_bytes_per_s <= 10 * 2**20 / 1e-3
    assert link.at_least and 2**17 / 1e-3 <= link.bytes_per_s * 1.001 <= 1.01 * 2**18 / 1e-3
    for fit in link.fits:
        assert fit.at_least and fit.bytes_per_s == pytest.approx(2**18 / 1e-3, rel=1e-3)
    assert parse(to_text(found), "printed") == found


def test_noise_that_falls_leaves_the_line() -> None:
    assert fit_sustained([1e3, 1e6], [2e-3, 1e-3]) == fit_line([1e3, 1e6], [2e-3, 1e-3])


def test_a_line_never_falls_and_never_starts_below_zero() -> None:
    falling = fit_line([1e3, 1e6], [2e-3, 1e-3])
    assert falling.seconds(1e3) <= falling.seconds(1e6) and falling.error > 0.1
    proportional = fit_line([1e3, 1e6], [1e-6, 2e-3])
    assert proportional.latency_s > 0 and math.isfinite(proportional.per_s)


@pytest.mark.parametrize(
    ("amounts", "seconds"), [([1], [1]), ([1, 2], [1]), ([1, 2], [1, 0]), ([1, 2], [1, math.nan])]
)
def test_times_that_cannot_be_fitted(amounts: list[float], seconds: list[float]) -> None:
    with pytest.raises(CostModelError, match="Cannot fit"):
        fit_line(amounts, seconds)


def test_rates_of_several_terms() -> None:
    first, second = [1.0, 1.0, 2.0, 5.0], [0.0, 3.0, 1.0, 9.0]
    seconds = [a / 10 + b / 100 for a, b in zip(first, second, strict=True)]
    assert fit_rates([first, second], seconds) == pytest.approx([10, 100])
    assert fit_rates([first, second], [1.0, 1.0, 2.0, 5.0]) == pytest.approx([1.0, 9.0 / 5.0])


def synthetic(slower: float, collectives: bool) -> Measured:
    """What a machine would measure that is exactly as the models say."""

    def trained(flops: float, nbytes: float) -> float:
        forward_s = op_seconds(flops, nbytes, "float32", TRUE)
        return (forward_s + op_seconds(2 * flops, 2 * nbytes, "float32", TRUE)) * slower

    times = {nbytes: 1e-3 + nbytes / 1e9 for nbytes in SIZES}
    return Measured(
        tiny_s=2 * LAUNCH_S * slower,
        matmul_s={"float32": {n: trained(2 * n**3, 0) for n in (64, 128, 256)}},
        elementwise_s={n: trained(0, 3 * n) for n in (2**14, 2**18, 2**20, 2**21, 2**22, 2**24)},
        collectives={(kind, 2): times for kind in KINDS} if collectives else {},
        overlap=0.25 if collectives else 0.0,
        waiting=Waiting(0.125, 5e-4) if collectives else NO_WAITING,
    )


def test_a_profile_recovers_the_machine_that_was_measured() -> None:
    found = profile({1: synthetic(1.0, False), 2: synthetic(2.0, True)})
    device = found.device_shared_by(1)
    assert device.flops_per_s["float32"] == pytest.approx(FLOPS_PER_S, rel=1e-2)
    assert device.launch_s == pytest.approx(LAUNCH_S, rel=1e-3)
    assert device.cache_bytes == TRUE.cache_bytes
    assert device.cache_bytes_per_s == pytest.approx(TRUE.cache_bytes_per_s, rel=1e-2)
    assert device.bytes_per_s == pytest.approx(TRUE.bytes_per_s, rel=1e-2)
    half = found.device_shared_by(2)
    assert half.flops_per_s["float32"] == pytest.approx(device.flops_per_s["float32"] / 2, rel=1e-3)
    assert half.launch_s == pytest.approx(2 * device.launch_s, rel=1e-3)
    assert (half.overlap, half.behind, half.late_s) == (0.25, 0.125, 5e-4)
    assert (device.behind, device.late_s) == (0.0, 0.0)
    for fit in found.intra_host.fits:
        assert (fit.latency_s, fit.bytes_per_s) == pytest.approx((1e-3, 1e9), rel=1e-3)
        assert fit.error < 1e-2
    assert all(share.error < 0.02 for share in found.shared.values())


def _half_as_fast(amount: Amount) -> dict[Direction, float]:
    """Forward as the roofline says, its backward at half that speed; beside what a call costs."""
    forward = op_seconds(amount.flops, amount.nbytes, amount.dtype, TRUE)
    backward = op_seconds(amount.backward_flops, 2 * amount.nbytes, amount.dtype, TRUE)
    return {"forward": forward, "backward": 2 * (backward - LAUNCH_S) + LAUNCH_S}


def test_curves_say_what_operators_reach() -> None:
    amounts = [Amount("tanh", "float32", size, size / 8, size / 8) for size in (2**18, 2**20)]
    measured = replace(
        synthetic(1.0, False), operators={a: _half_as_fast(a) for a in reversed(amounts)}
    )
    (curve,) = profile({1: measured, 2: synthetic(1.0, True)}).device.curves
    assert (curve.operator, curve.dtype) == ("tanh", "float32")
    assert [size for size, _ in curve.forward] == [2**18, 2**20]
    assert [share for _, share in curve.forward] == pytest.approx([1.0, 1.0], rel=1e-2)
    assert [share for _, share in curve.backward] == pytest.approx([0.5, 0.5], rel=1e-2)


@pytest.mark.thorough
def test_samples_run_what_they_are_named_for() -> None:
    every = list(samples(QUICK.matrices, QUICK.curve_nbytes))
    assert len({sample.amount for sample in every}) == len(every)
    for sample in every[:3] + every[-20:]:
        inputs = sample.inputs()
        result = sample.call(*inputs)
        moved = sum(t.numel() * t.itemsize for t in (*inputs, result))
        assert sample.amount.nbytes == pytest.approx(moved, rel=1e-2), sample.amount
        forward, backward = sample.actions()
        forward()
        gradients = backward()
        assert isinstance(gradients, tuple) and all(g is not None for g in gradients)


def test_measurements_combine_figure_by_figure() -> None:
    fast, slow = synthetic(1.0, True), synthetic(3.0, True)
    both = combined([slow, fast], min, fmean)
    assert (both.tiny_s, both.matmul_s, both.overlap) == (fast.tiny_s, fast.matmul_s, fast.overlap)
    assert both.collectives == fast.collectives
    assert both.elementwise_s[2**20] == pytest.approx(2 * fast.elementwise_s[2**20])


def test_more_ranks_never_have_more_of_the_device() -> None:
    lucky = profile({1: synthetic(2.0, False), 2: synthetic(3.0, True), 4: synthetic(1.0, True)})
    assert lucky.shared[4].flops == lucky.shared[2].flops < 1
    assert lucky.shared[4].launch == lucky.shared[2].launch > 1


def test_the_shipped_profile_states_its_errors() -> None:
    hardware = load("cpu")
    assert "off by" in hardware.source and hardware.date == "2026-11-22"
    assert all(fit.error > 0 for fit in hardware.intra_host.fits)
    assert all(share.error > 0 for share in hardware.shared.values())


@pytest.mark.slow
def test_a_quick_run_gives_a_valid_profile() -> None:
    heard: list[str] = []
    start = time.monotonic()
    found = calibrate(quick=True, ranks=(2,), progress=heard.append)
    assert time.monotonic() - start < 20 * _patience()
    _check_measured(found)
    assert [line for line in heard if line.startswith("measuring with 2 processes")]


def _patience() -> float:
    """Busy machines take longer; the limit is meant for two free cores."""
    return 1 + os.getloadavg()[0] / 2


def _check_measured(found: Hardware) -> None:
    found.check()
    assert parse(to_text(found), "printed") == found
    assert set(found.device.flops_per_s) == {"float32", "float64", "bfloat16"}
    assert 1e8 < found.device.flops_per_s["float32"] < 1e14
    assert 1e-7 < found.device.launch_s < 1e-2
    assert {(fit.collective, fit.ranks) for fit in found.intra_host.fits} == {
        (kind, 2) for kind in KINDS
    }
    assert sorted(found.shared) == [1, 2]


@pytest.mark.parametrize("ranks", [(), (1,), (0, 2), (2.0,)])
def test_ranks_that_make_no_sense(ranks: tuple[int, ...]) -> None:
    with pytest.raises(CostModelError, match=r"ranks=.*above one"):
        calibrate(quick=True, ranks=ranks)


@pytest.mark.thorough
def test_the_first_error_of_a_process_ends_the_run() -> None:
    with pytest.raises(CostModelError, match=r"process failed: rank 0: .*negative"):
        run(1, partial(measure, Effort(matrices=(-3,), rounds=1)))


def test_the_time_limit_ends_the_run() -> None:
    with pytest.raises(CostModelError, match="longer than 0 s"):
        run(1, partial(measure, Effort()), limit_s=0.1)


@pytest.mark.slow
def test_the_command_writes_a_profile(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    command = [sys.executable, "-m", "cost_models.calibrate", "--quick", "-o", str(path)]
    subprocess.run(command, check=True, timeout=120)
    found = load(path)
    assert {fit.ranks for fit in found.intra_host.fits} == {2, 4}
    if 0 < found.cores < 4:
        together = 4 * found.shared[4].flops
        assert together < 1.3 * found.cores, "four ranks did more than the cores can do"


def test_what_falls_is_noise_and_pooled() -> None:
    assert rising([1.0, 2.0, 3.0]) == pytest.approx([1.0, 2.0, 3.0])
    assert rising([4.0, 1.0, 3.0]) == pytest.approx([2.0, 2.0, 3.0])
    assert rising([8.0, 4.0, 2.0]) == pytest.approx([4.0, 4.0, 4.0])
