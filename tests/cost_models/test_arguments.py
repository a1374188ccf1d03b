"""What nobody can mean is refused, where the cost models are used alone."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.errors import CostModelError
from cost_models.hardware import load
from cost_models.ops import op_seconds


@pytest.mark.parametrize("ranks", [0, -3, 1.5])
def test_a_host_has_a_whole_number_of_ranks(ranks: Any) -> None:
    for ask in (load("cpu").device_shared_by, load("h100").filled):
        with pytest.raises(CostModelError, match=f"The ranks of a host are {ranks}, not a whole"):
            ask(ranks)


def test_an_operator_goes_forward_or_backward() -> None:
    sideways: Any = "sideways"
    with pytest.raises(CostModelError, match="'sideways' is no direction"):
        op_seconds(1.0, 1.0, "float32", load("cpu").device, "addmm", sideways)
