"""Pipelines evaluate as one process does where evaluation has other operators than training."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import autopar
from tests.parity import close
from tests.pipeline.test_transfer import Mixed, batch
from tests.pool import Pool
from tests.wide import Wide


def check(stages: tuple[Any, ...], schedule: str | None, skip: int | None, extra: str) -> None:
    """Steps and evaluations in turn, in which a layer is left out, or some layers keep their mode."""
    torch.manual_seed(0)
    model = Mixed().double()
    for layer in model.layers:
        layer[2].p = 0.0  # type: ignore[index]
    model.skip = skip
    single = copy.deepcopy(model)
    with Wide():
        parallel = autopar.parallelize(
            model, sum(stages), batch(), hardware="cpu", optimizer="SGD",
            pipeline=autopar.Pipeline(stages, schedule, microbatches=1),
        )  # fmt: skip
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (parallel, single)]
        for size in (8, 8, 6):
            loss = single(**batch(size))
            loss.backward()
            close(parallel.train_step(**batch(size)), loss.detach(), "loss")
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            for each in (parallel, single):
                each.eval()
                if extra:
                    each.get_submodule(extra).train()
            with torch.no_grad():
                close(parallel(**batch(size)), single(**batch(size)), "loss in evaluation")
            parallel.train()
            single.train()
    whole = parallel.full_state_dict()
    for name, want in single.state_dict().items():
        close(whole[name], want, name)


CASES = [
    ((1, 1), None, None, ""),
    ((1, 1), None, 0, ""),
    ((1, 1), None, 2, "layers.1"),
    ((1, 1, 1), "gpipe", None, "layers.0"),
    ((1, 1), "interleaved", 1, ""),
]


@pytest.mark.parametrize(
    ("stages", "schedule", "skip", "extra"),
    [pytest.param(*c, marks=() if n == 1 else pytest.mark.slow) for n, c in enumerate(CASES)],
)
def test_evaluation_is_cut_by_weights(
    pool: Pool, stages: tuple[Any, ...], schedule: str | None, skip: int | None, extra: str
) -> None:
    pool.run(sum(stages), check, stages, schedule, skip, extra)
