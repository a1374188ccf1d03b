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


def test_attention_with_a_learned_bias_is_attention_until_it_was_timed() -> None:
    plain = Curve("scaled_dot_product_attention", "float32", ((1e4, 0.8),), ((1e4, 0.7),))
    biased = replace(plain, operator="biased_attention", forward=((1e4, 0.2),))
    op = "autopar.biased_attention"
    assert share((plain,), op, "float32", "forward", 1e4) == 0.8
    assert share((plain, biased), op, "float32", "forward", 1e4) == 0.2
    assert share((plain, biased), plain.operator, "float32", "forward", 1e4) == 0.8


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
        ("[]", r"device\.curves\[0\]\.forward: the number of points is 0, not positive"),
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


@pytest.mark.parametrize(
    ("curve", "says"),
    [
        (
            replace(TANH, operator="tahn"),
            r"'tahn' is not an operator .* mine\.tahn\. .* mean 'tanh'",
        ),
        (replace(TANH, operator="mm"), "'mm' is timed as 'linear'; write operator = \"linear\""),
        (replace(TANH, operator="relu"), "'relu' is timed as 'mul'"),
        (replace(TANH, dtype="fp32"), "'fp32' is not a dtype of torch. Did you mean 'float32'"),
        (LINEAR, "has two of linear in float32; leave one out"),
    ],
)
def test_curves_that_no_operator_would_find_are_refused(curve: Curve, says: str) -> None:
    hardware = load("h100")
    made = replace(hardware, device=replace(hardware.device, curves=(LINEAR, curve)))
    with pytest.raises(ProfileError, match=says):
        parse(to_text(made), "wrong.toml")


def test_any_operator_may_have_a_curve_and_of_other_libraries_their_own() -> None:
    names = ("tanh", "batch_norm", "_to_copy", "routed_experts", "mine.tanh")
    curves = tuple(replace(TANH, operator=name, dtype="float16") for name in names)
    hardware = load("h100")
    replace(hardware, device=replace(hardware.device, curves=curves)).check()
    for op in ("aten.tanh.default", "autopar.routed_experts.default", "mine.tanh.default"):
        assert share(curves, op, "float16", "forward", 1e3) == 0.1
    assert share(curves[:1], "mine.tanh.default", "float16", "forward", 1e3) == 1.0
