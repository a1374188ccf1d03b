"""Which operators without gradient are divided: frozen work is, masks and tables are not."""

from __future__ import annotations

import pytest
import torch

from autopar.capture import capture
from autopar.compile.outputs import with_outputs
from autopar.ir.graph import Graph, short
from autopar.ir.mesh import Mesh
from autopar.rules.worth import worth_splitting
from autopar.sharding.sharding_problem import Settings, candidates_of
from tests import parity


def graph_of(name: str) -> Graph:
    model, inputs, loss = parity.case_of(name)
    return with_outputs(capture(model, inputs, loss=loss), ())


@pytest.mark.parametrize("name", ["gpt2", "llama", "architectures.bert", "architectures.t5"])
def test_models_that_train_have_none(name: str) -> None:
    """So their candidates, planning times and plans are what they would be without the question."""
    assert not worth_splitting(graph_of(name))


def test_frozen_operators_have_the_candidates_of_trained_ones() -> None:
    """As many as the same operator has with gradient, less the letter that a gradient needs."""
    graph = graph_of("probe")
    busy = worth_splitting(graph)
    assert {"embedding", "linear", "layer_norm", "add"} <= {short(graph.node[n].op) for n in busy}
    frozen = candidates_of(graph, Mesh.of(2), Settings()).operators
    trained = candidates_of(graph.with_gradients(), Mesh.of(2), Settings()).operators
    for name in busy:
        assert len(frozen[name]) == len(trained[name]) - 1, name


def test_a_product_of_buffers_counts_and_an_outer_product_does_not() -> None:
    assert "matmul" in {
        short(graph.node[n].op) for graph in [products()] for n in worth_splitting(graph)
    }
    assert not any(short(products().node[n].op) == "mul" for n in worth_splitting(products()))


class Products(torch.nn.Module):
    """A frozen projection by a buffer, and an angle per position."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(16, 8))
        self.scale = torch.nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = x[:, :1] * torch.arange(8.0)
        return ((x @ self.table) * self.scale + angles).square().sum()


def products() -> Graph:
    return with_outputs(capture(Products().train(), {"x": torch.randn(4, 16)}), ())


@pytest.mark.thorough
def test_a_class_of_blocks_never_takes_the_models_name() -> None:
    """``Teacher`` has layers called ``teacher``: its own class would hide theirs."""
    work = parity.preset_work("teacher", (2,), None)
    assert work.source.count("class Teacher(") == 1 and "class Teacher2(" in work.source
