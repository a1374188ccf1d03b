"""Cheapest chains: against Floyd and Warshall, whichever columns are asked for, in whichever order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from autopar.cost import chains
from autopar.cost.chains import Chains, Edges

EDGES = st.dictionaries(
    st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda pair: pair[0] != pair[1]),
    st.integers(0, 9).map(float),
    max_size=40,
)


def chains_of(edges: dict[tuple[int, int], float]) -> Chains:
    """Edges of equal seconds are of one kind."""
    kinds = sorted(set(edges.values()))
    numbered = [(a, b, kinds.index(cost)) for (a, b), cost in edges.items()]
    return Chains(Edges.of(8, numbered), np.array(kinds))


def all_pairs(count: int, edges: dict[tuple[int, int], float]) -> np.ndarray:
    """The referee."""
    seconds = np.full((count, count), np.inf)
    np.fill_diagonal(seconds, 0.0)
    for pair, cost in edges.items():
        seconds[pair] = cost
    for via in range(count):
        seconds = np.minimum(seconds, seconds[:, [via]] + seconds[[via], :])
    return seconds


@pytest.mark.thorough
@given(EDGES, st.permutations(range(8)), st.booleans())
def test_every_column_is_the_cheapest(edges, order, whole):
    before, chains.WHOLE = chains.WHOLE, 100 if whole else 0
    try:
        closed = chains_of(edges)
        expected = all_pairs(8, edges)
        for targets in (order[:3], order[2:]):
            assert_allclose(closed.seconds(range(8), targets), expected[:, targets])
            walked = closed.along(sorted(set(edges.values())).__getitem__, range(8), targets)
            assert_allclose(walked, np.where(np.isinf(expected), 0.0, expected)[:, targets])
    finally:
        chains.WHOLE = before


@given(EDGES)
def test_a_path_is_as_long_as_it_says(edges):
    closed = chains_of(edges)
    for source, target in itertools.product(range(8), repeat=2):
        (seconds,) = closed.seconds([source], [target])[0]
        if np.isfinite(seconds):
            stops = closed.path(source, target)
            assert (stops[0], stops[-1]) == (source, target)
            assert sum(edges[pair] for pair in itertools.pairwise(stops)) == seconds
