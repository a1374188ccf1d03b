"""Curves: how much of the roofline's speed an operator reaches, and what follows for its price."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_models.curves import Curve, share
from cost_models.errors import ProfileError
from cost_models.hardware import load, parse, to_text
from cost_models.ops import op_seconds

TANH = Curve("tanh", "float32", ((1e3, 0.1), (1e5, 0.4)), ((1e3, 0.5), (1e5, 2.0)))
LINEAR = Curve("linear", "float32", ((1e4, 0.9),), ((1e4, 0.8),))
HALF = replace(LINEAR, dtype="bfloat16", forward=((1e4, 0.3),))
CURVES = (TANH, LINEAR, HALF)


def test_shares_lie_between_what_was_measured() -> None:
    assert share(CURVES, "aten.tanh.default", "float32", "forward", 1e3) == pytest.approx(0.1)
    assert share(CURVES, "aten.tanh.default", "float32", "forward", 1e4) == pytest.approx(0.2)
    assert share(CURVES, "aten.tanh.default", "float32", "backward", 1e5) == pytest.approx(2.0)
    for beyond, reached in ((1.0, 0.1), (1e9, 0.4)):
        assert share(CURVES, "tanh", "float32", "forward", beyond) == pytest.approx(reached)


def test_operators_are_known_by_name_kin_and_dtype() -> None:
    assert share(CURVES, "aten.addmm.default", "float32", "forward", 1e4) == 0.9
    assert share(CURVES, "aten.linear.default", "bfloat16", "forward", 1e4) == 0.3
    assert share(CURVES, "aten.linear.default", "float16", "forward", 1e4) == 0.9
    assert share(CURVES, "mine.sinh.default", "float32", "forward", 1e4) == 1.0
    assert share(CURVES, "aten.tanh.default", "float32", "forward", 0.0) == 1.0
    assert share((), "aten.tanh.default", "float32", "forward", 1e4) == 1.0


def test_an_operator_takes_as_much_longer() -> None:
    device = replace(load("h100").device, curves=CURVES)
    for direction, moved, reached in (("forward", 1e3, 0.1), ("backward", 2e3, 0.5)):
        plain = op_seconds(1e12, moved, "float32", device) - device.launch_s
        timed = op_seconds(1e12, moved, "float32", device, "aten.tanh.default", direction)  # type: ignore[arg-type]
        assert timed - device.launch_s == pytest.approx(plain / reached)


def test_a_profile_keeps_its_curves() -> None:
    hardware = load("cpu")
    made = replace(hardware, device=replace(hardware.device, curves=CURVES))
    assert parse(to_text(made), "made.toml") == made


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ("[[2e3, 0.5], [1e3, 0.5]]", r"device\.curves\[0\]\.forward: the bytes to 1000\.0"),
        ("[[1e3, 0.0]]", r"device\.curves\[0\]\.forward: the share at 1000\.0"),
        ("[[1e3]]", r"device\.curves\.forward holds \[1000\.0\]"),
        ("[['a', 1.0]]", r"device\.curves\.forward is 'a'"),
        ("'none'", r"device\.curves\[0\]\.forward is 'none', not a list of pairs"),
    ],
)
def test_curves_that_mean_nothing_are_refused(points: str, says: str) -> None:
    hardware = load("cpu")
    text = to_text(replace(hardware, device=replace(hardware.device, curves=(LINEAR,))))
    wrong = text.replace("forward = [[10000.0, 0.9]]", f"forward = {points}")
    assert wrong != text
    with pytest.raises(ProfileError, match=says):
        parse(wrong, "wrong.toml")
