"""Folded graphs, places to cut, and graphs of other sizes of the batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.capture import repeats
from autopar.capture.saved import saved
from autopar.ir.mesh import Mesh
from autopar.ir.split import computing, split
from autopar.pipeline.build import positions
from autopar.pipeline.build.cuts import narrow_cuts
from autopar.pipeline.build.folded import KEPT, fold
from autopar.pipeline.build.positions import places
from autopar.pipeline.build.sizes import NotLinear, Sized, between
from tests.daily import daily
from tests.pipeline.build.cases import source

MESH = Mesh.of(2)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_three_copies_are_left(name: str) -> None:
    graph = source(name, MESH, layers=6).whole
    (repeat,) = repeats(graph)
    folded = fold(graph)
    (left,) = repeats(folded.graph)
    assert (repeat.count, left.count, left.period) == (6, KEPT, repeat.period)
    operators = {node.name: node for node in folded.graph.nodes}
    for node in computing(graph):
        stand_in = operators[folded.stands_for[node.name]]
        assert (node.op, [t.shape for t in node.outputs]) == (
            stand_in.op,
            [t.shape for t in stand_in.outputs],
        )


def test_two_copies_stay() -> None:
    graph = source("gpt2", MESH, layers=2).whole
    assert fold(graph).graph == graph


@pytest.mark.thorough
@pytest.mark.parametrize("name", daily(["gpt2", "llama", "bert"], ["llama"]))
@pytest.mark.parametrize("samples", daily([1, 2, 4], [1]))
def test_graphs_of_other_sizes_are_those_that_are_captured(name: str, samples: int) -> None:
    found = source(name, MESH, layers=3)
    whole, half = found.whole, found.capture(4)
    made = between(Sized(8, whole, saved(whole)), Sized(4, half, saved(half)), samples)
    if samples == 1:  # a capture of one sample leaves out what is expanded
        assert made.graph.leaves("input")[0].outputs[0].shape[0] == 1
        return
    captured = found.capture(samples)
    assert [(n.op, n.args, n.outputs) for n in made.graph.nodes] == [
        (n.op, n.args, n.outputs) for n in captured.nodes
    ]
    assert made.saved == saved(captured)


def test_other_graphs_are_refused() -> None:
    one, two = source("gpt2", MESH, layers=2), source("llama", MESH, layers=2)
    pair = Sized(8, one.whole, {}), Sized(4, two.whole, {})
    with pytest.raises(NotLinear):
        between(*pair, 2)
    odd = replace(one.whole, nodes=one.whole.nodes)
    with pytest.raises(NotLinear):  # 8 -> 16, 4 -> 12: one sample would make nine and a half
        between(Sized(8, _stretched(odd, 2), {}), Sized(4, odd, {}), 3)


def _stretched(graph, extra):  # type: ignore[no-untyped-def]
    nodes = [
        replace(n, outputs=tuple(replace(t, shape=(*t.shape[:-1], t.shape[-1] + extra))
                                 if t.shape else t for t in n.outputs))
        for n in graph.nodes
    ]  # fmt: skip
    return replace(graph, nodes=tuple(nodes))


@pytest.mark.thorough
def test_places_are_narrow_and_the_same_in_every_block() -> None:
    graph = source("gpt2", MESH, layers=6).whole
    found = places(graph)
    assert set(found.pieces) <= set(narrow_cuts(graph))
    (repeat,) = repeats(graph)
    index = {node.name: place for place, node in enumerate(graph.nodes)}
    offsets = [
        {index[cut] - block.start for cut in found.pieces if index[cut] in block}
        for block in (repeat.block(copy) for copy in range(1, repeat.count))
    ]
    assert offsets[0] and all(each == offsets[0] for each in offsets)
    assert found.positions == tuple(range(len(found.pieces) + 2))


def test_one_place_per_block_where_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = source("gpt2", MESH, layers=6).whole
    monkeypatch.setattr(positions, "MOST", 8)
    (repeat,) = repeats(graph)
    index = {node.name: place for place, node in enumerate(graph.nodes)}
    found = places(graph)
    for copy in range(repeat.count):
        assert sum(index[cut] in repeat.block(copy) for cut in found.pieces) == 1
    split(graph, found.pieces)
