"""What the solver minimises is near the step that is predicted: both know of the same costs."""

from __future__ import annotations

import pytest
import torch

import autopar
from tests.cost.test_overlap import ROWS, WIDTH, Deep

PRESETS = (None, "ddp", "zero2", "fsdp")
SHARED = 0.06
"""Apart for what only the emitted program tells: who shares a bucket, and which bucket is last."""


@pytest.mark.parametrize("hardware", ["h100", "cpu"])
@pytest.mark.parametrize("preset", PRESETS)
def test_the_count_is_near_the_prediction(preset: str | None, hardware: str) -> None:
    """Weights that are gathered are copied, a tenth of this model's step: both have to know."""
    inputs = {"x": torch.zeros(ROWS, WIDTH)}
    plan = autopar.plan(Deep(), (2, 2), inputs, hardware=hardware, preset=preset)
    assert plan.objective_s == pytest.approx(plan.estimate.step_s, rel=SHARED)
