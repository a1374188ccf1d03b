"""A stage with nothing to train: the plain loop runs, and its checkpoint comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import autopar
from tests.distributed.jobs import message_of
from tests.pool import Pool


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
    parallel = autopar.parallelize(model, (2,), batch, loss=F.cross_entropy, stages=2)
    optimizer = torch.optim.AdamW([p for p in parallel.parameters() if p.requires_grad], lr=0.1)
    other = torch.optim.AdamW([p for p in alone.parameters() if p.requires_grad], lr=0.1)
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
    for name, value in parallel.full_state_dict().items():
        torch.testing.assert_close(value, alone.state_dict()[name], rtol=1e-9, atol=1e-12)
    return message_of(lambda: parallel.train_step(**batch, microbatches=2))


@pytest.mark.parametrize("frozen", [False, True])
def test_a_stage_that_trains_nothing(pool: Pool, tmp_path: Path, frozen: bool) -> None:
    for said in pool.run(2, job, str(tmp_path / "step"), frozen):
        assert "is decided when it is made" in said
