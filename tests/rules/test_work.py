"""The operations that prices count are those that torch's own counter sees."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from autopar.operators import bind, callable_of
from autopar.rules import flops
from tests.rules.building import Example, build
from tests.rules.examples import ATTENTION, CONTRACTIONS, CONVOLUTIONS
from tests.rules.examples_of_places import EINSUMS, RECURRENT
from tests.rules.values import draw

FAMILIES = (*CONTRACTIONS, *EINSUMS, *CONVOLUTIONS, *ATTENTION, *RECURRENT)
BY_HAND = {
    "mv": 2 * 6 * 12,
    "dot": 2 * 12,
    "outer": 2 * 6 * 12,
    "addmv": 2 * 6 * 12,
    "addr": 2 * 6 * 12,
    "addbmm": 2 * 6 * 9 * 12 * 18,
    "matmul:vector right": 2 * 6 * 9 * 12,
    "matmul:dot": 2 * 12,
    "linear:vector": 2 * 12 * 18,
    "linear:weight vector": 2 * 6 * 12,
    "bilinear": 2 * 6 * 18 * 9 * 12,
    "bilinear:no bias": 2 * 6 * 18 * 9 * 12,
    "inner:scalar": 12,
    "einsum:permute": 6 * 4 * 9 * 2 * 3 * 8,
    "einsum:sum": 6 * 9,
    "einsum:diagonal": 6,
    "grouped_mm_fallback.default": 2 * 12 * 9 * 18,
    "linalg_vecdot": 2 * 6 * 9 * 12,
    "linalg_vecdot:first": 2 * 6 * 9 * 12,
    "cdist": 2 * 6 * 9 * 10 * 12,
    "cdist:stretched": 2 * 6 * 9 * 10 * 12,
    "cosine_similarity": 6 * 12,
    "cosine_similarity:stretched": 6 * 9,
    "pairwise_distance": 6,
    "pairwise_distance:kept": 6,
}
"""torch counts products of matrices only, and none that one kernel hides."""


@pytest.mark.parametrize(
    "example", [e for e in FAMILIES if e.name not in BY_HAND], ids=lambda example: example.name
)
def test_against_the_counter_of_torch(example: Example) -> None:
    graph, node = build(example)
    tensors = tuple(graph.tensors[name] for name in node.operands)
    values = iter(draw(node, tensors, torch.Generator().manual_seed(0)))
    args = [bind(arg, lambda _: next(values)) for arg in node.args]
    kwargs = {key: bind(arg, lambda _: next(values)) for key, arg in node.kwargs}
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        callable_of(node.op)(*args, **kwargs)
    assert flops(node, graph) == counter.get_total_flops()


@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand(name: str) -> None:
    graph, node = build(next(example for example in FAMILIES if example.name == name))
    assert flops(node, graph) == BY_HAND[name]
