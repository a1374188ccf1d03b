"""Plans of streams whose updates do not wait: what they predict."""

from __future__ import annotations

from typing import Any

import pytest

from autopar.api import compile_staged
from autopar.pipeline.build.staged import Staged
from autopar.request.pipeline import Pipeline
from tests import models


def planned(schedule: str, **options: Any) -> Staged:
    model, inputs, loss = models.mlp()
    pipeline = Pipeline(2, schedule, **options)
    made = compile_staged(model, 2, inputs, loss=loss, hardware="cpu", pipeline=pipeline)
    assert isinstance(made, Staged)
    return made


def test_older_versions_take_memory() -> None:
    """The last stage keeps one version under weight stashing, two where all stages keep as many."""
    stashing = planned("pipedream", asynchronous=True)
    vertical = planned("pipedream-vertical", asynchronous=True)
    assert stashing.plan.prediction is not None and vertical.plan.prediction is not None
    first, last = (
        two.nbytes - one.nbytes
        for one, two in zip(
            stashing.plan.prediction.stages, vertical.plan.prediction.stages, strict=True
        )
    )
    weights = stashing.stages.graphs[1].leaves("parameter")
    assert (first, last) == (0, sum(node.outputs[0].nbytes for node in weights))


def test_the_step_is_a_batch_of_the_stream() -> None:
    """Without filling and draining, a batch takes as long as the slowest stage: less than alone."""
    stream = planned("pipedream", asynchronous=True).plan
    alone = planned("1f1b", microbatches=1).plan
    assert stream.prediction is not None and alone.prediction is not None
    slowest = max(
        s.forward_s + s.input_grad_s + s.weight_grad_s + s.once_s for s in stream.prediction.stages
    )
    assert slowest <= stream.prediction.step_s * (1 + 1e-9)
    assert stream.prediction.step_s < alone.prediction.step_s
    assert stream.prediction.step_s == pytest.approx(slowest, rel=0.7)
