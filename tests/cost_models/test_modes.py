"""Efficiency by shape, the host's time to issue operators, and the modes of a profile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cost_models.errors import ProfileError, UnknownHardwareError
from cost_models.hardware import Device, Hardware, Link, load, parse, to_text
from cost_models.modes import Mode
from cost_models.ops import op_seconds
from cost_models.shapes import ShapeEfficiency

HALF = ShapeEfficiency(0.8, 100.0, "made up", "2026-11-29")
DEVICE = Device("d", "cuda", 1e9, {"float32": 1e12}, 1e11, 0.5, launch_s=1e-6, products=HALF)
FUSED = Mode("made up", "2026-11-29", launch_s=0.0, issue_s=5e-5, lays_out=False)
HARDWARE = Hardware(DEVICE, 8, Link(1e9, 1e-6), Link(1e9, 1e-6), "made up", "2026-11-29",
                    modes={"fused": FUSED})  # fmt: skip


def test_small_dims_lower_the_efficiency() -> None:
    assert HALF.of((1e12, 1e12, 100.0)) == pytest.approx(0.4)
    assert HALF.of((100.0, 1e12, 1e12)) == HALF.of((1e12, 1e12, 100.0))
    assert HALF.of((0.0,)) == HALF.of((1.0,))


def test_products_are_priced_by_shape_and_others_by_the_general_efficiency() -> None:
    flops = 2.0 * 200**3
    by_shape = op_seconds(flops, 0, "float32", DEVICE, "mm", dims=(200.0, 200.0, 200.0))
    assert by_shape == pytest.approx(flops / 1e12 / (0.8 / 2.5) + 1e-6)
    in_general = op_seconds(flops, 0, "float32", DEVICE, "conv2d")
    assert in_general == pytest.approx(flops / 1e12 / 0.5 + 1e-6)


def test_attention_has_its_own_efficiency() -> None:
    attention = replace(HALF, most=0.4, edge=0.0)
    device = replace(DEVICE, attention=attention)
    op = "aten.scaled_dot_product_attention.default"
    found = op_seconds(1e9, 0, "float32", device, op, dims=(512.0, 64.0))
    assert found == pytest.approx(1e-3 / 0.4 + 1e-6)


def test_long_kernels_hide_the_time_to_issue_them_and_views_take_none() -> None:
    device = replace(DEVICE, launch_s=0.0, issue_s=5e-5)
    assert op_seconds(0, 1e5, "float32", device) == 5e-5
    assert op_seconds(0, 1e8, "float32", device) == pytest.approx(1e-3)
    assert op_seconds(1e6, 0, "float32", device) == 0.0


def test_a_mode_replaces_its_figures_only() -> None:
    found = HARDWARE.in_mode("fused")
    assert found.device == replace(DEVICE, launch_s=0.0, issue_s=5e-5, lays_out=False)
    assert found.modes == {} and "mode fused" in found.source


def test_modes_and_shapes_print_and_parse_back() -> None:
    assert parse(to_text(HARDWARE), "printed") == HARDWARE
    assert parse(to_text(HARDWARE.in_mode("fused")), "printed") == HARDWARE.in_mode("fused")


def test_a_mode_follows_the_name_of_a_profile_or_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(to_text(HARDWARE))
    assert load(f"{path}:fused") == HARDWARE.in_mode("fused")
    assert load("a100:megatron").device.lays_out is False
    with pytest.raises(ProfileError, match=r"no mode 'fast'. Known: fused"):
        load(f"{path}:fast")
    with pytest.raises(UnknownHardwareError, match="a101:fused"):
        load("a101:fused")


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (replace(FUSED, issue_s=-1.0), "modes.fused.issue_s is -1.0"),
        (replace(FUSED, memory_efficiency=0.0), "modes.fused.memory_efficiency is 0.0"),
        (replace(FUSED, overlap=2.0), "modes.fused.overlap is 2.0"),
        (replace(FUSED, source=""), "modes.fused must state its source"),
        (replace(FUSED, date="today"), "modes.fused: date is 'today'"),
    ],
)
def test_wrong_figures_of_a_mode_are_refused(mode: Mode, said: str) -> None:
    with pytest.raises(ProfileError, match=said):
        replace(HARDWARE, modes={"fused": mode}).check()


@pytest.mark.parametrize("shaped", [replace(HALF, most=1.5), replace(HALF, edge=-1.0)])
def test_wrong_shape_efficiencies_are_refused(shaped: ShapeEfficiency) -> None:
    with pytest.raises(ProfileError, match=r"device\.products"):
        replace(HARDWARE, device=replace(DEVICE, products=shaped)).check()
