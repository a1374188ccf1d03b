"""Which plans torch's pipeline engine cannot run: said with the limit, before anything runs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from autopar.capture import capture
from autopar.errors import InputError
from autopar.ir.mesh import Mesh
from autopar.pipeline.build.pipeline_spec import PipelineSpec
from autopar.pipeline.build.staged import Staged, compile_pipeline
from autopar.request.pipeline import Pipeline
from autopar.runtime.pipeline.limits import check_limits
from autopar.runtime.pipeline.relays import Relays
from autopar.sharding.sharding_problem import Settings
from cost_models.hardware import load
from tests import models
from tests.architectures import ARCHITECTURES
from tests.pipelines import random_stages


@cache
def staged(name: str, stages: Any, schedule: str, seed: int | None = None) -> Staged:
    model, inputs, loss = (models.ALL.get(name) or ARCHITECTURES[name])()
    mesh = Mesh.of(sum(stages))
    settings = Settings(optimizer="SGD", states=0.0)
    wanted = PipelineSpec.of(mesh, Pipeline(stages, schedule, None))
    with random_stages(seed):
        return compile_pipeline(
            capture(model, inputs, loss=loss), mesh, load("cpu"), settings, wanted
        )


def limit(made: Staged) -> str:
    with pytest.raises(InputError) as raised:
        check_limits(made.plan, Relays(made.stages))
    return str(raised.value)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["unet", "t5"])
def test_what_passes_each_border(name: str) -> None:
    relays = Relays(staged(name, (1, 1, 1, 1), "1f1b").stages)
    skips = [c for c in relays.stages.crossings if c.target > c.source + 1]
    assert skips
    for crossing in relays.stages.crossings:
        for border in range(crossing.source, crossing.target):
            assert crossing.tensor in relays.out_of(border)
            assert crossing.tensor in relays.into(border + 1)
    for name, source in relays.made_by.items():
        around = [b for b, names in enumerate(relays.borders) if name in names]
        assert around == list(range(source, max(relays.readers[name]))), name
    assert relays.into(0) == relays.out_of(3) == ()


def test_what_it_takes() -> None:
    for made in (staged("gpt2", (1, 1), "zb-v"), staged("unet", (1, 1, 1, 1), "zb-h1")):
        check_limits(made.plan, Relays(made.stages))


def test_meshes_must_be_equal() -> None:
    assert "worker 1 has 3 of them, worker 0 1" in limit(staged("mlp", (1, 3), "1f1b"))


def test_borders_must_be_alike() -> None:
    message = limit(staged("gpt2", (2, 2), "1f1b", seed=1))
    assert "stage 0 leaves hidden_states_2 as [I] on (x=2), stage 1 reads it as [S(2)]" in message


def test_ranks_must_ascend() -> None:
    made = staged("mlp", (1, 1), "1f1b")
    other = replace(made.plan, workers=made.plan.workers[::-1])
    assert "place 0 of the workers has ranks 1, 0" in limit(replace(made, plan=other))


def test_the_loss_must_be_in_the_last_stage() -> None:
    made = staged("mlp", (1, 1), "1f1b")
    *first, last = made.stages.graphs
    stages = replace(made.stages, graphs=(*first, replace(last, loss=None)))
    assert "computes the loss in the last stage" in limit(replace(made, stages=stages))


def test_weights_that_torch_would_miss() -> None:
    message = limit(staged("t5", (1, 1), "zb-v"))
    assert "a result of stage 1, needs weights but nothing that the stage gets" in message
    assert "1f1b" in message


class Biased(nn.Module):
    """A bias of attention that is computed of a weight, and that every layer of two stages adds."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.bias = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for place, layer in enumerate(self.layers):
            x = layer(x).tanh()
            if place == 1:
                bias = self.bias.exp()
            if place > 1:
                x = x + bias
        return x.sum()


def test_weights_that_torch_would_go_through_twice() -> None:
    graph, mesh = capture(Biased(), {"x": torch.ones(8, 8)}), Mesh.of(2)
    cut = next(node.name for node in graph.nodes if node.op.endswith("exp.default"))
    for schedule in ("zb-h1", "1f1b"):
        wanted = PipelineSpec.of(mesh, Pipeline(2, schedule, 2, (cut,)))
        made = compile_pipeline(
            graph, mesh, load("cpu"), Settings(optimizer="SGD", states=0.0), wanted
        )
        if schedule == "1f1b":
            check_limits(made.plan, Relays(made.stages))
        else:
            assert "bias_1 in stage 1 needs weights" in limit(made) and "1f1b" in limit(made)


def test_gradients_that_would_be_zeros() -> None:
    made = staged("gpt2", (1, 1), "1f1b")
    crossings = tuple(replace(crossing, returns=False) for crossing in made.stages.crossings)
    relays = Relays(replace(made.stages, crossings=crossings))
    with pytest.raises(InputError, match=r"a gradient of zeros for .* stage 1 reads without one"):
        check_limits(made.plan, relays)
