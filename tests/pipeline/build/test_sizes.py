"""Graphs of other sizes lie on the line through two captures: of the batch and of one sample."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.pipeline.build.sizes import NotLinear, Sizes, graph_between
from tests.pipeline.build.cases import source


@pytest.mark.thorough
@pytest.mark.parametrize("name", [pytest.param("gpt2", marks=pytest.mark.slow), "llama"])
def test_two_captures_give_every_size(name: str) -> None:
    found = source(name, Mesh.of(2), layers=3)
    asked: list[int] = []

    def capture(samples: int) -> Graph:
        asked.append(samples)
        return found.capture(samples)

    sizes = Sizes(found.batch, found.whole, capture)
    for samples in (2, 4, 1, found.batch):
        exact = Sizes(samples, found.capture(samples), found.capture)(samples)
        found_here = sizes(samples)
        assert found_here.graph.digest == exact.graph.digest
        for node, kept in exact.saved.items():
            mine = found_here.saved[node]
            assert (mine.shares, mine.passes) == (kept.shares, kept.passes), node
            assert (mine.extra_nbytes, mine.operands) == (kept.extra_nbytes, kept.operands), node
    assert asked == [1]


@pytest.mark.thorough
def test_where_one_sample_is_special_a_part_of_the_batch_is_captured() -> None:
    found = source("gpt2", Mesh.of(2), layers=3)
    asked: list[int] = []

    def capture(samples: int) -> Graph:
        """One sample's graph has other operators."""
        asked.append(samples)
        return source("llama", Mesh.of(2), 3).whole if samples == 1 else found.capture(samples)

    sizes = Sizes(found.batch, found.whole, capture)
    exact = Sizes(2, found.capture(2), found.capture)(2)
    assert sizes(2).graph.digest == exact.graph.digest
    assert asked == [1, found.batch // 2]


def test_a_source_captures_each_size_once() -> None:
    found = source("gpt2", Mesh.of(2), layers=3)
    assert found.capture(found.batch) is found.whole
    assert found.capture(1) is found.capture(1)


@pytest.mark.thorough
def test_a_microbatch_lies_between_what_is_captured() -> None:
    """No third capture: the graph is the one that it would give."""
    found = source("gpt2", Mesh.of(2), layers=3)
    ends = [(samples, found.capture(samples)) for samples in (found.batch, 1)]
    assert graph_between(ends[0], ends[1], 2).digest == found.capture(2).digest
    with pytest.raises(NotLinear):
        graph_between(ends[0], ends[0], 2)


def test_a_factor_that_depends_on_the_batch_is_captured() -> None:
    """Costs do not depend on it, but what is computed does."""
    found = source("gpt2", Mesh.of(2), layers=3)
    whole, single = found.whole, found.capture(1)
    scaled = next(n for n in single.nodes if any(isinstance(arg, float) for arg in n.args))
    args = tuple(arg + 1.0 if isinstance(arg, float) else arg for arg in scaled.args)
    nodes = tuple(replace(n, args=args) if n is scaled else n for n in single.nodes)
    with pytest.raises(NotLinear):
        graph_between((found.batch, whole), (1, replace(single, nodes=nodes)), 2)
