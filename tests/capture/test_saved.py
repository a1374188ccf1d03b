"""What autograd keeps: a promise to forget a gathered tensor must not be made of a copy."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from autopar.capture import capture
from autopar.capture.saved import saved
from autopar.ir.graph import Saved, short
from tests.capture.small import small


def of_attention(mask_has_gradient: bool) -> Saved:
    """Attention over [batch, places, heads, width] with heads in front, as models write it."""

    def body(m: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        heads = m.linear(x).view(2, 4, 2, 2).transpose(1, 2)  # type: ignore[operator]
        mask = heads.sum() * torch.ones(4, 4) if mask_has_gradient else torch.ones(4, 4)
        return F.scaled_dot_product_attention(heads, heads + 1, heads * 2, mask.to(x.dtype)).sum()

    model, inputs = small(body)
    graph = capture(model, inputs)
    node = next(n for n in graph.nodes if short(n.op) == "scaled_dot_product_attention")
    return saved(graph)[node.name]


def test_attention_without_a_fused_kernel_keeps_copies() -> None:
    assert {0, 1, 2} <= set(of_attention(mask_has_gradient=False).operands)
    assert not {0, 1, 2} & set(of_attention(mask_has_gradient=True).operands)


def test_an_operator_that_lays_its_operand_out_anew_keeps_a_copy() -> None:
    """A linear map of three dims keeps a transposed operand as a copy, of two dims as it is."""

    def body(m: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        made = m.linear(x.view(2, 4, 4).transpose(0, 1))  # type: ignore[operator]
        flat = m.linear(made.flatten(0, 1))  # type: ignore[operator]
        return flat.square().sum()

    model, inputs = small(body)
    graph = capture(model, inputs)
    kept = saved(graph)
    linear = [node for node in graph.nodes if short(node.op) == "linear"]
    wide, flat = (kept[node.name] for node in linear)
    read = graph.tensors[linear[0].operands[0]]
    assert 0 not in wide.operands and wide.copied == (0,) and wide.extra_nbytes == read.nbytes
    assert 0 in flat.operands and flat.copied == ()


def test_what_is_kept_as_an_operand_is_told() -> None:
    """A mask becomes numbers in its own shape; a transposed operand of a linear map a matrix."""

    def body(m: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        heads = m.linear(x).view(2, 4, 2, 2).transpose(1, 2)  # type: ignore[operator]
        mask = torch.ones(2, 1, 4, 4, dtype=torch.bool)
        mixed = F.scaled_dot_product_attention(heads, heads + 1, heads * 2, mask)
        return m.linear(mixed.transpose(1, 2).flatten(2).transpose(0, 1)).sum()  # type: ignore[operator]

    model, inputs = small(body)
    graph = capture(model, inputs)
    kept = saved(graph)
    attention = next(n for n in graph.nodes if short(n.op) == "scaled_dot_product_attention")
    mask = graph.tensors[attention.operands[3]]
    assert kept[attention.name].like == ((3, 8 * mask.nbytes),)
    last = [node for node in graph.nodes if short(node.op) == "linear"][-1]
    assert kept[last.name].like == ((0, graph.tensors[last.operands[0]].nbytes),)


def test_a_gradient_that_is_a_view_is_told() -> None:
    """That of a linear map's weight is a product turned round; that of a sum is what came in."""

    def body(m: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        made = m.linear(x)  # type: ignore[operator]
        return torch.relu(made + made.exp()).sum()

    model, inputs = small(body)
    graph = capture(model, inputs)
    views = {short(node.op): saved(graph)[node.name].views for node in graph.nodes if node.operands}
    assert 1 in views["linear"]
    assert views["add"] == views["relu"] == views["exp"] == ()


def test_a_gpu_keeps_a_mask_of_dropout() -> None:
    """One byte per element; the CPU keeps the factors, as wide as the input."""

    class Drop(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.dropout(self.mix(x), 0.1).sum()

    graph = capture(Drop(), {"x": torch.ones(4, 8)})
    name = next(node.name for node in graph.nodes if "dropout" in node.op)
    assert saved(graph)[name].extra_nbytes == 4 * 8 * 4
    assert saved(graph, "cuda")[name].extra_nbytes == 4 * 8


def test_a_reshape_of_a_transposed_tensor_is_a_copy() -> None:
    """Of one that lies in order it is a view; only the graph's strides tell them apart."""

    def body(m: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        heads = m.linear(x).view(2, 4, 2, 2)  # type: ignore[operator]
        return (heads.reshape(2, 16) + heads.transpose(1, 2).reshape(2, 16)).sum()

    model, inputs = small(body)
    graph = capture(model, inputs)
    kept = saved(graph)
    found = [kept[node.name] for node in graph.nodes if short(node.op) in ("reshape", "view")]
    assert [each.shares for each in found[-2:]] == [(0,), (None,)]
    assert [each.passes for each in found[-2:]] == [(0,), (0,)]


def test_gradients_share_memory_where_an_operator_hands_them_on() -> None:
    def body(m: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        made = m.linear(x)  # type: ignore[operator]
        return ((made + made.relu()) * made[0]).sum()

    model, inputs = small(body)
    graph = capture(model, inputs)
    kept = saved(graph)
    passes = {short(node.op): kept[node.name].passes for node in graph.nodes if not node.is_leaf}
    assert passes["add"] == (0, 0) and passes["relu"] == (None,) and passes["select"] == (None,)


def test_selective_recomputation_keeps_products() -> None:
    def body(m: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return m.linear(x).relu().sum()  # type: ignore[operator]

    model, inputs = small(body)
    graph = capture(model, inputs)
    cached = {short(n.op): saved(graph)[n.name].cached for n in graph.nodes if not n.is_leaf}
    assert cached["linear"] == (0,) and cached["relu"] == ()


def test_what_is_kept_inside_an_operator_is_counted_once_and_whole() -> None:
    """Query, key and value scaled or copied, and the weights: four storages, at every asking."""
    heads, scores = 8 * 2 * 4 * 2 * 2, 8 * 2 * 2 * 4 * 4
    for _ in range(5):
        assert of_attention(mask_has_gradient=True).extra_nbytes == 3 * heads + scores


@pytest.mark.parametrize(
    ("dtype", "sizes", "options"),
    [
        (torch.float32, (24, 6, 12), {}),
        (torch.float32, (40, 50, 12), {"bidirectional": True, "batch_first": True}),
        (torch.float32, (1, 3, 12), {}),
        (torch.float64, (24, 6, 12), {}),
    ],
)
def test_what_an_lstm_keeps_is_what_its_kernel_keeps(
    dtype: torch.dtype, sizes: tuple[int, ...], options: dict[str, bool]
) -> None:
    """The CPU's kernel of float32 has a workspace that its fake run does not show."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = torch.nn.LSTM(12, 20, 2, **options)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.rnn(x)[0]

    model, x = Model().to(dtype), torch.randn(sizes, dtype=dtype)
    rests = {tensor.untyped_storage().data_ptr() for tensor in (x, *model.parameters())}
    found: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in rests:
            found[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        made = model(x)
    graph = capture(model, {"x": x}, loss=torch.sum)
    node = next(node for node in graph.nodes if short(node.op) == "lstm")
    kept = saved(graph)[node.name]
    mine = kept.extra_nbytes + sum(node.outputs[place].nbytes for place in kept.outputs)
    real = sum(storage.nbytes() for storage in found.values())
    assert mine == pytest.approx(real, rel=0.03, abs=4096 * 8)
    assert made.dtype == dtype and real > made.nbytes


def test_what_is_put_into_a_copy_of_a_view_takes_all_that_it_looks_into() -> None:
    """A column is looked at; the copy that takes new entries has all from its first to its last."""

    def body(m: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        made = m.linear(x)  # type: ignore[operator]
        row = made.transpose(0, 1).select(0, 1)
        put = torch.slice_scatter(row, torch.zeros_like(row[:1]), 0, 0, 1)
        return (put * made.sum()).sum()

    model, inputs = small(body)
    graph = capture(model, inputs)
    node = next(n for n in graph.nodes if short(n.op) == "slice_scatter")
    rows, columns = graph.tensors["linear"].shape
    size = graph.tensors["linear"].itemsize
    assert saved(graph)[node.name].spare == (((rows - 1) * columns + 1 - rows) * size,)


def test_gradients_that_came_in_are_let_go() -> None:
    """Of a norm of several kernels the first takes them; where somebody holds them, they stay."""

    class Normed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.RMSNorm(64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x * self.norm.weight).sum()

    graph = capture(Normed().double(), {"x": torch.ones(32, 64, dtype=torch.float64)})
    norm = next(node for node in graph.nodes if short(node.op) == "rms_norm")
    kept, rows = saved(graph)[norm.name], 8 * 32 * 64
    assert rows <= kept.early_nbytes < kept.backward_nbytes


def test_only_gradients_that_arrive_count() -> None:
    """Nobody reads the cell's second state: in its backward there is one gradient less."""

    class Cell(torch.nn.Module):
        def __init__(self, both: bool) -> None:
            super().__init__()
            self.cell, self.both = torch.nn.LSTMCell(16, 16), both

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden, state = self.cell(x)
            return (hidden + state if self.both else hidden).square().sum()

    found = []
    for both in (False, True):
        graph = capture(Cell(both).double(), {"x": torch.ones(32, 16, dtype=torch.float64)})
        node = next(node for node in graph.nodes if short(node.op) == "lstm_cell")
        found.append(saved(graph)[node.name].early_nbytes)
    assert found[0] < found[1]


def test_what_does_not_lie_in_order_is_told() -> None:
    def body(m: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (m.linear(x).transpose(0, 1) * 2).reshape(2, 16).sum()  # type: ignore[operator]

    model, inputs = small(body)
    graph = capture(model, inputs)
    turned = {
        short(node.op): saved(graph)[node.name].turned for node in graph.nodes if node.operands
    }
    assert turned["transpose"] == turned["mul"] == (0,)
    assert turned["linear"] == turned["reshape"] == ()


@pytest.mark.parametrize(
    "name", ["mse_loss", "smooth_l1_loss", "soft_margin_loss", "binary_cross_entropy", "l1_loss"]
)
def test_a_loss_may_lie_among_its_terms(name: str) -> None:
    """As the kernel says that is installed; where it does not, nothing is said either."""
    loss = getattr(F, name)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = torch.nn.Linear(4, 6)

        def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            return loss(self.mix(x).sigmoid(), wanted, reduction="sum") * 2

    inputs = {"x": torch.randn(3, 4), "wanted": torch.ones(3, 6)}
    graph = capture(Model(), inputs)
    node = next(node for node in graph.nodes if short(node.op) == name)
    real = loss(torch.rand(3, 6), torch.ones(3, 6), reduction="sum").untyped_storage().nbytes()
    assert sum(saved(graph)[node.name].spare) + 4 == real


def test_a_plan_made_under_no_grad_asks_for_backwards_all_the_same() -> None:
    """An evaluation plans where autograd is off; an operator may give its operand itself."""

    def body(m: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(m.linear(x)).square().sum()  # type: ignore[operator]

    model, inputs = small(body)
    graph = capture(model, inputs)
    laid_out = {"aten.tanh.default": "aten.contiguous.default"}
    graph = replace(
        graph, nodes=tuple(replace(n, op=laid_out.get(n.op, n.op)) for n in graph.nodes)
    )
    with torch.no_grad():
        found = saved(graph)
    assert dict(found) == dict(saved(graph))
