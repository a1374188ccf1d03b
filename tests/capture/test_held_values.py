"""What a parallel model's attributes hold: changes are seen, and captured as in a fresh capture."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from autopar.capture.held_values import HeldValues
from autopar.capture.outside import OutsideValues
from autopar.errors import InputError
from autopar.ir.graph import Graph
from autopar.request.meta import without_weights
from autopar.request.options import Options
from autopar.compile.compiler import captured
from tests.habits import held_jobs

BATCH = {"x": torch.zeros(4, 8, dtype=torch.float64), "y": torch.zeros(4, dtype=torch.int64)}


class Followed:
    """A model, a copy in the place of the parallel one, and what a compiler knows of both."""

    def __init__(self, model: nn.Module, tree: nn.Module | None = None) -> None:
        self.tree = copy.deepcopy(model) if tree is None else tree
        self.bare = without_weights(model)
        self.outside = OutsideValues(self.bare, held_jobs.entropy)
        self.held = HeldValues(self.tree, model, self.bare, ())
        self.outside.follow(self.held)

    def places(self) -> list[str]:
        """Places whose values have changed."""
        return [place for place, _ in self.outside.differences()]

    def graph(self) -> Graph:
        with self.outside.put_on():
            return graph_of(self.bare)


def graph_of(bare: nn.Module) -> Graph:
    return captured(bare, BATCH, Options(loss=held_jobs.entropy))


@pytest.mark.parametrize("name", held_jobs.CHANGES)
def test_a_change_is_captured(name: str) -> None:
    made = Followed(held_jobs.Holding().double())
    first = made.graph()
    assert made.places() == []
    with torch.no_grad():
        held_jobs.CHANGES[name](made.tree, 2.0)
    assert made.places()
    fresh = graph_of(without_weights(made.tree))
    assert made.graph().digest == fresh.digest != first.digest
    assert graph_of(made.bare).digest == first.digest, "the copy is as it was"
