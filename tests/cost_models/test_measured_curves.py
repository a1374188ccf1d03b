"""Efficiency curves that come of timed calls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_models.curves import Curve, Direction
from cost_models.hardware import load
from cost_models.measured import Call, Timed
from cost_models.measured.curves import curves
from cost_models.measured.values import Pass, Work
from cost_models.ops import op_seconds

DEVICE = load("h100").device
SIZES = (2.0**20, 2.0**22, 2.0**24, 2.0**26)


def work(nbytes: float, op: str, direction: Direction) -> Work:
    twice = 1 if direction == "forward" else 2
    return Work(twice * nbytes / 8, twice * nbytes, "float32", op, direction)


def timed(nbytes: float, op: str = "aten.mul.Tensor", faster: float = 1.0) -> Timed:
    """As long as the device's roofline and curves say, or so many times less."""
    passes = {}
    calls = {way: work(nbytes, op, way) for way in ("forward", "backward")}  # type: ignore[arg-type]
    for way, one in calls.items():
        seconds = op_seconds(one.flops, one.nbytes, one.dtype, REACHED, op, one.direction)
        own_s = (seconds - DEVICE.launch_s) / faster
        passes[way] = Pass(own_s + DEVICE.launch_s, 0.0)
    call = Call(op, f"{op} {nbytes}", op, calls["forward"], calls["backward"])
    return Timed(call, passes["forward"], passes["backward"], 9, "2026-11-23")


TRUE = Curve("mul", "float32", tuple((n, 0.5) for n in SIZES), tuple((n, 0.25) for n in SIZES))
REACHED = replace(DEVICE, curves=(TRUE,))


def test_a_known_curve_comes_back() -> None:
    (found,) = curves([timed(n) for n in SIZES], DEVICE)
    assert (found.operator, found.dtype) == ("mul", "float32")
    for got, want in ((found.forward, TRUE.forward), (found.backward, TRUE.backward)):
        assert [n for n, _ in got] == pytest.approx([n for n, _ in want], rel=1e-3)
        assert [share for _, share in got] == pytest.approx([s for _, s in want], rel=1e-3)


def test_alike_operators_share_a_curve_and_like_sizes_a_point() -> None:
    every = [timed(2.0**24), timed(2.0**24, "aten.div.Tensor", faster=4.0)]
    (found,) = curves(every, REACHED)
    ((_, forward),) = found.forward
    # div is timed as mul, whose curve gives it a half: of 0.5 and 4 x 0.5 the mean is 1
    assert forward == pytest.approx(1.0, rel=1e-3)


def test_what_moves_nothing_has_no_curve() -> None:
    view = Call("aten.view.default", "view", "view", Work(0.0, 0.0, "float32"), None)
    assert curves([Timed(view, Pass(1e-5, 0.0), None, 9, "2026-11-23")], DEVICE) == ()
