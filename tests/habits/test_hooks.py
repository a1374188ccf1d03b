"""Forward hooks that a model came with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import autopar
from autopar.errors import CaptureError
from tests.habits import patched_jobs
from tests.pool import Pool


def planned(model: nn.Module) -> Any:
    batch = {"input": torch.randn(4, 4)}
    return autopar.plan(model, 1, batch, loss=lambda output: output.square().mean())


def test_one_that_changes_the_output_is_captured() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    before = planned(model).digest
    handle = model[0].register_forward_hook(lambda module, args, output: output * 2)
    assert planned(model).digest != before
    handle.remove()
    assert planned(model).digest == before


def test_one_that_only_looks_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    seen: list[torch.Tensor] = []
    handle = model[0].register_forward_hook(lambda module, args, output: seen.append(output))
    with pytest.raises(CaptureError, match="on 0 returns nothing"):
        planned(model)
    handle.remove()
    planned(model)


def test_hooks_on_the_backward_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].register_full_backward_hook(lambda module, before, after: None)
    with pytest.raises(CaptureError, match="1 has a backward hook"):
        planned(model)


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_on_gradients_of_parameters_are_refused(register: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    getattr(model[1].weight, register)(lambda gradient: None)
    with pytest.raises(CaptureError, match=r"'1\.weight' has gradient hooks"):
        planned(model)


HOWS = [
    ("ddp", {"preset": "ddp"}),
    ("fsdp", {"preset": "fsdp"}),
    ("stages", {"pipeline": autopar.Pipeline(2, microbatches=2)}),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("how", "options"), HOWS)
def test_what_is_put_beside_forward(pool: Pool, how: str, options: dict[str, Any]) -> None:
    pool.run(2, patched_jobs.beside_forward, options)
    pool.run(2, patched_jobs.marks, options)
