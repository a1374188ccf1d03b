"""Captured graphs give the loss, the gradients and the buffers of the models themselves."""

from __future__ import annotations

import pytest

from tests.capture.compare import captured_equals_eager
from tests.models import CASES, double

CASTS_INSIDE = {"llama"}
"""Families that compute norms and rotary tables in float32 whatever their dtype."""


@pytest.mark.parametrize("name", list(CASES))
def test_captured_equals_eager(name: str) -> None:
    model, inputs, loss = double(CASES[name]())
    captured_equals_eager(model, inputs, loss, 1e-6 if name in CASTS_INSIDE else 1e-12)
