"""A pipeline trains and evaluates on batches of any size: the step equals that of one process."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import autopar
from tests.distributed.jobs import message_of
from tests.pool import Pool

SIZES = (8, 6, 5, 16, 1, 8)
"""Of batches, one after the other; the first is cut into four."""


def job(schedule: str, sizes: tuple[int, ...], most: int) -> list[str]:
    """A step on each; what is said of methods that pipelines do not have."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(6, 6), nn.Tanh()] * 4
    alone = copy.deepcopy(nn.Sequential(*layers, nn.Linear(6, 3))).double()
    batches = [
        {"input": torch.randn(n, 6, dtype=torch.float64), "target": torch.randint(0, 3, (n,))}
        for n in sizes
    ]
    parallel = autopar.parallelize(
        copy.deepcopy(alone), (2,), batches[0], loss=F.cross_entropy,
        pipeline=autopar.Pipeline(2, schedule=schedule, microbatches=4),
    )  # fmt: skip
    one, two = (torch.optim.AdamW(m.parameters(), lr=0.1) for m in (parallel, alone))
    for batch in batches:
        loss = parallel.train_step(**batch)
        expected = F.cross_entropy(alone(batch["input"]), batch["target"])
        expected.backward()
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-9, atol=0)
        for optimizer in (one, two):
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            seen = parallel(**batch)
            wanted = F.cross_entropy(alone(batch["input"]), batch["target"])
        torch.testing.assert_close(seen, wanted, rtol=1e-9, atol=0)
    for name, value in parallel.full_state_dict().items():
        torch.testing.assert_close(value, alone.state_dict()[name], rtol=1e-8, atol=1e-10)
    counts = {built.plan.microbatches for built in parallel._of_batch.values()}
    assert max(counts) == most, counts
    return [message_of(parallel.no_sync), message_of(lambda: parallel.save_weights("weights"))]


@pytest.mark.parametrize(
    ("schedule", "sizes", "most"),
    [
        pytest.param("zb-v", SIZES, 5, marks=pytest.mark.slow),
        pytest.param("1f1b", SIZES, 5, marks=pytest.mark.slow),
        ("dualpipe-v", (8, 6, 16, 8), 6),  # three would be too few
    ],
)
def test_batches_of_other_sizes(
    pool: Pool, schedule: str, sizes: tuple[int, ...], most: int
) -> None:
    for no_sync, save_weights in pool.run(2, job, schedule, sizes, most):
        assert no_sync.startswith("InputError") and "several times" in no_sync
        assert save_weights.startswith("InputError") and "full_state_dict()" in save_weights
