"""The operations that prices count are those that torch's own counter sees."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from autopar.capture import capture
from autopar.ir.graph import short
from autopar.ops.operators import bind, callable_of
from autopar.rules import backward_flops, flops
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
    # torch counts the pairs that a causal mask leaves out; its kernels skip them
    skipped = 2 if example.note.startswith("causal") else 1
    assert skipped * flops(node, graph) == counter.get_total_flops(), (
        f"{example.name}: if torch's counter does not know the operator, put it in BY_HAND"
    )


@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand(name: str) -> None:
    graph, node = build(next(example for example in FAMILIES if example.name == name))
    assert flops(node, graph) == BY_HAND[name]


class Products(torch.nn.Module):
    """A layer with a bias, one without, and attention."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.mix = torch.nn.Linear(24, 24, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.mix(x).unflatten(-1, (3, 8)).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, 2 * heads, 3 * heads).sum()


@pytest.mark.parametrize("bias", [False, True])
def test_backward_of_products(bias: bool) -> None:
    """Twice the forward, a bias a sum; of attention half the forward more, the scores made again."""
    x = torch.randn(2, 10, 24, requires_grad=True)
    graph = capture(Products(bias), {"x": x})
    found = {node.op: (flops(node, graph), backward_flops(node, graph)) for node in graph.nodes}
    forward, backward = found["aten.linear.default"]
    inputs = 0 if not graph.tensors["x"].differentiable else 1
    assert forward == 2 * 2 * 10 * 24 * 24
    assert backward == (1 + inputs) * forward + (2 * 10 * 24 if bias else 0)
    forward, backward = found["aten.scaled_dot_product_attention.default"]
    assert backward == 2.5 * forward


class Cells(torch.nn.Module):
    """Two steps by hand."""

    def __init__(self, kind: type[torch.nn.RNNCellBase]) -> None:
        super().__init__()
        self.cell = kind(6, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = self.cell(x[:, 1], self.cell(x[:, 0]))
        return state if isinstance(state, torch.Tensor) else state[0]


class Steps(torch.nn.Module):
    """A recurrent network behind a layer, or reading what has no gradient."""

    def __init__(self, behind: bool, kind: type[torch.nn.RNNBase], **options: bool) -> None:
        super().__init__()
        self.before = torch.nn.Linear(6, 6) if behind else torch.nn.Identity()
        self.steps = kind(6, 10, 2, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.steps(self.before(x))[0]


PRODUCTS = ("linear", "lstm", "gru", "rnn_tanh", "lstm_cell", "gru_cell")
RECURRENT_MODELS = {
    "lstm": lambda: Steps(False, torch.nn.LSTM),
    "lstm behind": lambda: Steps(True, torch.nn.LSTM),
    "lstm both ways": lambda: Steps(False, torch.nn.LSTM, bidirectional=True),
    "gru both ways, behind": lambda: Steps(True, torch.nn.GRU, bidirectional=True),
    "rnn, batch first": lambda: Steps(False, torch.nn.RNN, batch_first=True),
    "lstm cell": lambda: Cells(torch.nn.LSTMCell),
    "gru cell": lambda: Cells(torch.nn.GRUCell),
}


@pytest.mark.parametrize("name", RECURRENT_MODELS)
def test_backward_of_recurrent_operators(name: str) -> None:
    """As the counter sees the whole model; it knows that nobody wants the first state's gradient."""
    model, x = RECURRENT_MODELS[name]().double(), torch.randn(4, 8, 6, dtype=torch.float64)
    graph = capture(model, {"x": x}, loss=torch.sum)
    products = [node for node in graph.nodes if short(node.op) in PRODUCTS]
    with FlopCounterMode(display=False) as counter:
        made = model(x).sum()
    assert sum(flops(node, graph) for node in products) == counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        made.backward()
    mine = sum(backward_flops(node, graph) for node in products)
    assert counter.get_total_flops() <= mine <= 1.25 * counter.get_total_flops()


def test_nothing_goes_back_where_no_gradient_is_wanted() -> None:
    frozen = Products(True).requires_grad_(False)
    graph = capture(frozen, {"x": torch.randn(2, 10, 24)})
    assert all(backward_flops(node, graph) == 0 for node in graph.nodes)
