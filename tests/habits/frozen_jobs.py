"""What the pool's workers do: steps of models that change buffers, beside one process."""

from __future__ import annotations

import copy
from typing import Any

import torch

import autopar
from tests.distributed.jobs import same_weights
from tests.habits.frozen_models import MODELS

STEPS, SAMPLES = 3, 8


def made(name: str) -> tuple[torch.nn.Module, list[dict[str, torch.Tensor]]]:
    """The model and a batch for each step, equal on all ranks."""
    torch.manual_seed(7)
    model = MODELS[name]().double()
    return model, [{"x": torch.randn(SAMPLES, 8, dtype=torch.float64)} for _ in range(STEPS)]


def steps(name: str, ranks: int, options: dict[str, Any]) -> str:
    """Losses, weights and buffers after three steps equal one process's; the emitted source."""
    model, batches = made(name)
    single = copy.deepcopy(model)
    parallel = autopar.parallelize(model, ranks, batches[0], **options)
    mine = torch.optim.SGD(parallel.parameters(), lr=0.1, momentum=0.9)
    its = torch.optim.SGD(single.parameters(), lr=0.1, momentum=0.9)
    for batch in batches:
        got, want = parallel(**batch), single(**batch)
        got.backward()
        want.backward()
        mine.step(), its.step()
        mine.zero_grad(), its.zero_grad()
        error = abs(float(got.detach()) - float(want.detach()))
        assert error <= 1e-9 * max(abs(float(want.detach())), 1.0), (name, error)
    same_weights(parallel, single, 1e-9)
    return str(parallel.source)
