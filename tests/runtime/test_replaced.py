"""Two parallel models with a part in common."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import autopar
from autopar.errors import InputError
from tests.daily import daily
from tests.pool import Pool

BATCH = {"x": torch.ones(4, 8)}
LAYOUTS = ({"preset": "fsdp"}, {"pipeline": 2})


class Head(nn.Module):
    """Two layers of a trunk, which may be shared, and one of its own."""

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk, self.head = trunk, nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.trunk(x)).square().mean()


class Both(nn.Module):
    """The remedy: one module that calls both."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) + self.second(x)


def trunk() -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))


def shared(layout: dict[str, Any]) -> str:
    """What the second of two models with one trunk is told; what may be done is done."""
    torch.manual_seed(0)
    common = trunk()
    first, second = Head(common), Head(common)

    def parallelized(model: nn.Module) -> nn.Module:
        return autopar.parallelize(model, 2, BATCH, hardware="cpu", **layout)

    one = parallelized(first)
    again = parallelized(first)
    try:
        parallelized(second)
    except InputError as error:
        said = str(error)
    else:
        said = ""
    parallelized(copy.deepcopy(second))
    del one, again
    kept = parallelized(Both(first, second))
    with pytest.raises(InputError, match=r"shares 'trunk.0.weight' and 5 more"):
        parallelized(first)
    del kept
    other = parallelized(second)
    common.requires_grad_(False)
    parallelized(first)
    del other
    return said


@pytest.mark.parametrize("layout", daily(LAYOUTS, LAYOUTS[:1]))
def test_two_models_with_one_trunk(pool: Pool, layout: dict[str, Any]) -> None:
    for said in pool.run(2, shared, layout):
        assert "shares 'trunk.0.weight' and 3 more" in said
        assert "into one nn.Module" in said
