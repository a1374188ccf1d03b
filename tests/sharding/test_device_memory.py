"""Without a limit a plan fits the device; who asks for more gets it, and is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import autopar
from autopar.errors import OverLimitError
from autopar.plans.plan import Plan
from cost_models.hardware import Hardware, load
from cost_models.profile_text import to_text
from tests import models
from tests.cli.commands import run

MESH = (2, 2)


def with_memory(nbytes: float) -> Hardware:
    """An H100 with little of it."""
    hardware = load("h100")
    return replace(hardware, device=replace(hardware.device, memory_bytes=nbytes))


def planned(hardware: Hardware, **options: Any) -> Plan:
    model, inputs, loss = models.gpt2()
    return autopar.plan(model, MESH, inputs, loss=loss, hardware=hardware, **options)


@pytest.fixture(scope="module")
def free() -> Plan:
    """Nothing binds."""
    return planned(load("h100"))


def test_what_fits_is_planned_as_ever(free: Plan) -> None:
    assert free.asked.memory_limit is None
    assert free.estimate.memory_nbytes < load("h100").device.memory_bytes


@pytest.mark.slow
def test_what_does_not_fit_is_made_to(free: Plan) -> None:
    own = 0.6 * free.estimate.memory_nbytes
    small = planned(with_memory(own))
    assert small.asked.memory_limit == own
    assert small.estimate.memory_nbytes <= own
    assert small.estimate.step_s > free.estimate.step_s
    assert small == planned(with_memory(own), memory_limit=own)


@pytest.mark.slow
def test_none_and_presets_may_need_more(free: Plan) -> None:
    little = with_memory(0.1 * free.estimate.memory_nbytes)
    with pytest.raises(OverLimitError, match=r"No plan fits .*: each needs"):
        planned(little)
    assert planned(little, memory_limit="none").digest == free.digest
    assert planned(little, preset="ddp").asked.memory_limit is None


@pytest.mark.thorough
def test_the_command_warns(free: Plan, tmp_path: Path) -> None:
    profile = tmp_path / "little.toml"
    profile.write_text(to_text(with_memory(0.1 * free.estimate.memory_nbytes)))
    made = run(
        "plan", "tests/cli/factories.py:gpt", "--mesh", "2x2", "--hardware", profile,
        "--memory", "none", "-o", tmp_path / "p.json",
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    assert "warning: a step needs" in made.stderr
