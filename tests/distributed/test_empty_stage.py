"""A stage with nothing to train: the plain loop runs, and its checkpoint comes back."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import autopar
from autopar.runtime.checkpoint import load
from tests.daily import daily
from tests.distributed.jobs import message_of
from tests.pool import Pool


def parallelized(model: nn.Module, batch: dict[str, torch.Tensor], stages: int) -> Any:
    """On two ranks."""
    return autopar.parallelize(model, (2,), batch, loss=F.cross_entropy, pipeline=stages)


def job(path: str, frozen: bool) -> str:
    """Three steps beside one process; what is said of microbatches= in a step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3)) if frozen else nn.Linear(6, 3)
    if isinstance(model, nn.Sequential):
        model[0].requires_grad_(False)
    model.double()
    alone = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3)) if frozen else nn.Linear(6, 3)
    alone.double().load_state_dict(model.state_dict())
    if isinstance(alone, nn.Sequential):
        alone[0].requires_grad_(False)
    x, y = torch.randn(8, 6, dtype=torch.float64), torch.randint(0, 3, (8,))
    batch = {"input": x, "target": y}
    parallel = parallelized(model, batch, 2)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=0.1)
    other = torch.optim.AdamW(alone.parameters(), lr=0.1)
    for _ in range(3):
        loss = parallel.train_step(**batch)
        norm = parallel.clip_grad_norm_(0.05)
        optimizer.step()
        parallel.zero_grad()
        expected = F.cross_entropy(alone(x), y)
        expected.backward()
        theirs = nn.utils.clip_grad_norm_(alone.parameters(), 0.05)
        other.step()
        other.zero_grad()
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-9, atol=0)
        torch.testing.assert_close(norm, theirs, rtol=1e-9, atol=0)
        parallel.save(path, optimizer)
        parallel.load(path, optimizer)
    for again in (model, parallelized(model, batch, 1), parallelized(model, batch, 2)):
        restored = torch.optim.AdamW(again.parameters(), lr=0.5)
        assert load(path, again, restored) == 0
        assert not frozen or restored.param_groups[0]["lr"] == 0.1
    parallel.eval()
    torch.testing.assert_close(parallel(**batch), F.cross_entropy(alone(x), y), rtol=1e-9, atol=0)
    for name, value in parallel.full_state_dict().items():
        torch.testing.assert_close(value, alone.state_dict()[name], rtol=1e-9, atol=1e-12)
    return message_of(lambda: parallel.train_step(**batch, microbatches=2))


@pytest.mark.parametrize("frozen", [False, True])
def test_a_stage_that_trains_nothing(pool: Pool, tmp_path: Path, frozen: bool) -> None:
    for said in pool.run(2, job, str(tmp_path / "step"), frozen):
        assert "is fixed when it is built" in said


class Spare(nn.Module):
    """A frozen first layer, a teacher behind `detach`, and a weight that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.first = nn.Linear(6, 6), nn.Linear(6, 6).requires_grad_(False)
        self.middle, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.spare = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        said = self.teacher(x)
        return (self.last(torch.relu(self.middle(self.first(x)))) - said.detach()).square().mean()


def divided(model: nn.Module, x: torch.Tensor, stages: int) -> Any:
    """Between what the teacher says and where it is detached, where there are stages."""
    cuts = ("last",) if stages > 1 else ()
    return autopar.parallelize(model, (2,), {"x": x}, pipeline=autopar.Pipeline(stages, cuts=cuts))


def without_gradients(path: str, saved: int, loaded: int) -> str:
    """Weights without gradient are as one process leaves them, in evaluation and checkpoints, too."""
    torch.manual_seed(0)
    model = Spare().double()
    alone, x = copy.deepcopy(model), torch.randn(8, 6, dtype=torch.float64)
    other = torch.optim.AdamW(alone.parameters(), lr=0.1, weight_decay=0.1)
    parallel = divided(model, x, saved)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=0.1, weight_decay=0.1)
    for number in range(4):
        if number == 2:
            parallel.save(path, optimizer)
            parallel = divided(model, x, loaded)
            optimizer = torch.optim.AdamW(parallel.parameters(), lr=0.1, weight_decay=0.1)
            parallel.load(path, optimizer)
        parallel.train_step(x=x)
        for module, each in ((parallel, optimizer), (alone, other)):
            if module is alone:
                alone(x).backward()
            each.step()
            module.zero_grad()
        state = alone.state_dict()
        for name, value in parallel.full_state_dict().items():
            torch.testing.assert_close(value, state[name], rtol=1e-9, atol=1e-12, msg=name)
    parallel.eval()
    torch.testing.assert_close(parallel(x=x), alone(x), rtol=1e-9, atol=0)
    with torch.no_grad():
        return message_of(lambda: parallel.train_step(x=x))


@pytest.mark.thorough
@pytest.mark.parametrize(("saved", "loaded"), daily([(1, 2), (2, 1), (2, 2)], [(2, 1)]))
def test_weights_without_gradient(pool: Pool, tmp_path: Path, saved: int, loaded: int) -> None:
    for said in pool.run(2, without_gradients, str(tmp_path / "step"), saved, loaded):
        assert "train_step computes gradients, which are off here" in said
