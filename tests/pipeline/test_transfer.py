"""Every stage reads weights that it holds, whatever state or shape a graph is of."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autopar.capture import capture
from autopar.errors import InputError
from autopar.ir.graph import Graph
from autopar.ir.split import Stages, computing, crossing_nbytes, split
from autopar.pipeline.build.transfer import transferred
from tests import models


class Mixed(nn.Module):
    """Three equal layers with batch norm, dropout and a weight that the head shares."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 8)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.ReLU())
            for _ in range(3)
        )
        self.skip: int | None = None

    def forward(self, ids: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        hidden = self.table(ids)
        for number, layer in enumerate(self.layers):
            if self.training or number != self.skip:
                hidden = hidden + layer(hidden)
        return nn.functional.cross_entropy(hidden @ self.table.weight.t(), goal)


def batch(size: int = 8) -> dict[str, torch.Tensor]:
    return {"ids": torch.arange(size) % 12, "goal": torch.arange(size) % 12}


def read(stages: Stages) -> list[set[str]]:
    return [{node.target for node in graph.leaves("parameter")} for graph in stages.graphs]


def check_everywhere(first: Graph, other: Graph, stages: int) -> None:
    """Wherever the first is cut, each stage of the other reads a part of what that of the first does."""
    places = [name for name, _ in crossing_nbytes(first)]
    for number in range(len(places) - stages + 2):
        cuts = places[number :: max(1, (len(places) - number) // (stages - 1))][: stages - 1]
        if len(cuts) == stages - 1:
            moved = split(other, transferred(cuts, first, other))
            for held, wanted in zip(read(split(first, cuts)), read(moved), strict=True):
                assert wanted <= held, (cuts, wanted - held)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("skip", [None, 0, 1, 2])
def test_batch_norm_dropout_and_skipped_layers(stages: int, skip: int | None) -> None:
    model = Mixed()
    train = capture(model, batch())
    model.skip = skip
    check_everywhere(train, capture(model.eval(), batch()), stages)
    if skip is None:
        check_everywhere(capture(model, batch()), train, stages)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("name", ["cnn", "gpt2"])
def test_models(name: str, stages: int) -> None:
    model, inputs, loss = getattr(models, name)()
    train = capture(model, inputs, loss=loss)
    check_everywhere(train, capture(model.eval(), inputs, loss=loss), stages)
    shorter = {key: value[:2] for key, value in inputs.items()}
    check_everywhere(train, capture(model.train(), shorter, loss=loss), stages)


class Turned(nn.Module):
    """Which runs its layers backward in evaluation, or reads what training never does."""

    def __init__(self, extra: bool) -> None:
        super().__init__()
        self.first, self.last, self.extra = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.has_extra = extra

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            return self.last(self.first(x).relu()).sum()
        if self.has_extra:
            return self.extra(self.last(self.first(x).relu())).sum()
        return self.first(self.last(x).relu()).sum()


@pytest.mark.parametrize("extra", [False, True])
def test_what_no_cut_can_do_is_said(extra: bool) -> None:
    model, inputs = Turned(extra), {"x": torch.ones(4, 8)}
    train = capture(model, inputs)
    cut = next(node.name for node in computing(train) if node.origin.module == "last")
    other = capture(model.eval(), inputs)
    with pytest.raises(InputError, match=r"leaves stage . the weights that it holds"):
        transferred([cut], train, other)
