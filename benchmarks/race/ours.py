"""What autopar chooses by itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from contender import Contender, Place, Setting
from models import Batch, Model

import autopar
from autopar.runtime.pipeline.module import Pipelined

OURS = "autopar"


def settings(place: Place) -> Iterator[Setting]:
    """One: nothing is tried."""
    del place
    yield Setting(OURS, "chosen", partial(chosen))


def chosen(model: Model, place: Place) -> Contender:
    """Whether to make a pipeline, and how to split every stage, under the calibrated profile."""
    parallel = autopar.parallelize(
        model.make(), place.mesh, model.batches()[0], hardware=place.hardware, pipeline="auto",
        optimizer=partial(torch.optim.AdamW, fused=True),
    )  # fmt: skip

    def step(batch: Batch) -> torch.Tensor:
        loss: torch.Tensor = parallel.train_step(**batch)
        return loss.detach()

    plan = parallel.plan
    if isinstance(parallel, Pipelined):
        meshes = "+".join("x".join(map(str, worker.mesh.sizes)) for worker in plan.workers)
        says = f"{plan.schedule.name}, {plan.microbatches} microbatches on {meshes}"
        predicted_s = plan.prediction.step_s if plan.prediction else None
    else:
        says, predicted_s = f"no stages, {plan.mesh}", plan.estimate.step_s
    return Contender(step, list(parallel.parameters()), parallel.full_state_dict, says, predicted_s)
