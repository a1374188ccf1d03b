"""Graphs cut into stages: nothing is lost, nothing is computed twice but what is cheap."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
import torch
from torch import nn

from autopar.capture import capture
from autopar.errors import InputError
from autopar.ir.graph import Graph
from autopar.ir.split import computing, crossing_nbytes, shared, split
from autopar.pipeline.build.cuts import balanced, narrow_cuts
from autopar.pipeline.build.transfer import transferred
from autopar.pipeline.schedules import Edge
from autopar.plans.pipeline_plan import edges
from autopar.rules.work import flops
from tests import models
from tests.architectures import ARCHITECTURES


@cache
def graph(name: str, **config: int) -> Graph:
    make = models.ALL.get(name) or ARCHITECTURES[name]
    model, inputs, loss = make(**config)
    return capture(model, inputs, loss=loss)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5", "unet"])
@pytest.mark.parametrize("stages", [2, 3])
def test_every_operator_has_one_stage(name: str, stages: int) -> None:
    whole = graph(name)
    made = split(whole, balanced(whole, [1.0] * stages))
    count = Counter(node.name for part in made.graphs for node in computing(part))
    everywhere = shared(whole)
    for node in computing(whole):
        assert count[node.name] == 1 or node.name in everywhere, node.name
    assert sum(part.loss is not None for part in made.graphs) == 1
    for crossing in made.crossings:
        assert crossing.source < crossing.target
        assert crossing.tensor in made.graphs[crossing.source].sends
        received = made.graphs[crossing.target].leaves("received")
        assert crossing.tensor in {node.target for node in received}
    work = [sum(flops(node, part) for node in part.nodes) for part in made.graphs]
    assert max(work) < 0.9 * sum(work)


def test_blocks_are_cut_apart() -> None:
    whole = graph("gpt2", layers=4)
    cut = balanced(whole, [1.0, 1.0])[0]
    made = split(whole, [cut])
    assert [c.tensor for c in made.crossings] and len(made.crossings) == 1
    hidden = made.graphs[0].tensors[made.crossings[0].tensor]
    assert hidden.shape == (8, 16, 32) and hidden.differentiable
    assert dict(crossing_nbytes(whole))[cut] == min(
        n for name, n in crossing_nbytes(whole) if ".h." in whole.node[name].origin.module
    )


def test_skips_cross_several_stages() -> None:
    whole = graph("t5")
    made = split(whole, balanced(whole, [1.0] * 4))
    assert any(edge.target - edge.source > 1 for edge in edges(made))
    assert [name for name, _ in made.ties], "the shared embedding is read by several stages"


def test_edges_say_whether_gradients_return() -> None:
    whole = graph("gpt2")
    made = split(whole, balanced(whole, [1.0, 1.0, 1.0]))
    assert edges(made) == (Edge(0, 1), Edge(1, 2))


def test_cuts_are_checked() -> None:
    whole = graph("gpt2")
    first, second = narrow_cuts(whole)[:2]
    with pytest.raises(InputError, match="no operator 'nothing'"):
        split(whole, ["nothing"])
    with pytest.raises(InputError, match="in the order"):
        split(whole, [second, first])
    with pytest.raises(InputError, match="stages at most"):
        balanced(whole, [1.0] * 10_000)


def test_cuts_move_to_graphs_of_other_shapes() -> None:
    model, inputs, loss = models.gpt2()
    whole = graph("gpt2")
    shorter = {key: value[:2] for key, value in inputs.items()}
    other = capture(model, shorter, loss=loss)
    cuts = balanced(whole, [1.0, 1.0, 1.0])
    assert transferred(cuts, whole, other) == cuts


@pytest.mark.parametrize("name", ["mlp", "cnn", "bert", "unet"])
def test_every_stage_reads_parameters(name: str) -> None:
    whole = graph(name)
    for count in (2, 3):
        made = split(whole, balanced(whole, [1.0] * count))
        assert all(part.leaves("parameter") for part in made.graphs)


class Distilled(nn.Module):
    """The teacher is trained by nobody, though its weights could be."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        said = self.teacher(x)
        return (torch.relu(self.student(x)) - said.detach()).square().mean()


def test_no_gradient_returns_to_what_is_only_read_detached() -> None:
    whole = capture(Distilled(), {"x": torch.randn(4, 8)})
    first, second, *_ = [node.name for node in computing(whole)]
    made = split(whole, [second])
    assert [(c.source, c.target, c.returns) for c in made.crossings] == [(0, 1, False)]
    assert edges(made) == (Edge(0, 1, False),)
    with pytest.raises(InputError, match=f"no operator '{first}' that a stage could begin with"):
        split(whole, [first])
