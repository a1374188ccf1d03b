"""What capture rewrites keeps its meaning: loss, gradients and buffers equal plain PyTorch's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.pytorch_utils import compile_compatible_method_lru_cache

from autopar.capture import capture
from tests.capture.compare import captured_equals_eager
from tests.capture.small import Small, small

Body = Callable[[Small, torch.Tensor], torch.Tensor]


def in_place(m: Small, x: torch.Tensor) -> torch.Tensor:
    hidden = m.linear(x)
    hidden += 1
    hidden.mul_(x).clamp_(min=0.1)
    other = hidden.clone()
    other.copy_(hidden * 2)
    other.unsqueeze_(0)
    return other.exp_().sum() + hidden.sum()


def in_place_on_a_dead_view(m: Small, x: torch.Tensor) -> torch.Tensor:
    hidden = m.linear(x) * 2
    return hidden.view(-1).mul_(2.0).exp().sum()


def write_to_a_column(m: Small, x: torch.Tensor) -> torch.Tensor:
    hidden = m.linear(x) * 1
    hidden[:, 0] = 0
    hidden[1:, 2].mul_(3.0)
    return hidden.pow(2).sum()


def write_through_two_views(m: Small, x: torch.Tensor) -> torch.Tensor:
    hidden = m.linear(x) * 1
    hidden.view(4, 2, 4).transpose(0, 1)[0, 1:].mul_(m.linear.bias)
    return hidden.pow(3).sum()


def fill_parts(m: Small, x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(8, 8, dtype=x.dtype)
    out[:, :4] = m.linear(x)
    out[:, 4:] = x
    return out.pow(2).sum()


def masked(m: Small, x: torch.Tensor) -> torch.Tensor:
    hidden = m.linear(x)
    hidden.masked_fill_(x > 0, 2.0)
    hidden.zero_() if x.shape[0] == 3 else hidden.add_(1)
    return hidden.pow(2).sum()


def no_grad_region(m: Small, x: torch.Tensor) -> torch.Tensor:
    hidden = m.linear(x)
    with torch.no_grad():
        target = hidden.sigmoid() * m.linear.bias
    return ((hidden - target) ** 2).sum() + (hidden.detach() * hidden).sum()


def inference_region(m: Small, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        scale = x.abs().sum()
    return m.linear(x).sum() + scale


def checkpointed(m: Small, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda y: m.linear(y).tanh(), x, use_reentrant=False).sum()


def several_outputs(m: Small, x: torch.Tensor) -> torch.Tensor:
    left, right = m.linear(x).chunk(2, 1)
    largest, where = left.max(1)
    variance, mean = torch.var_mean(right, 1)
    rows = sum(row.sum() for row in right.unbind(1))
    return (largest * mean * where).sum() + variance.sum() + rows + left.topk(1)[0].sum()


def write_to_one_of_several_outputs(m: Small, x: torch.Tensor) -> torch.Tensor:
    best, places = m.linear(x).softmax(-1).topk(2)
    best /= best.sum(-1, keepdim=True)
    return (best * places).pow(2).sum()


def constants(m: Small, x: torch.Tensor) -> torch.Tensor:
    scale = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=x.dtype)
    again = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=x.dtype)
    return (m.linear(x) * scale * torch.tensor(2.0) + again).sum()


def means(m: Small, x: torch.Tensor) -> torch.Tensor:
    hidden = m.linear(x)
    return hidden.mean() + hidden.mean((0, 1)) + hidden.mean(1).pow(2).mean()


def shapes_only(m: Small, x: torch.Tensor) -> torch.Tensor:
    hidden = m.linear(x)
    return (hidden + torch.zeros_like(hidden) + hidden.new_ones(4)).pow(2).sum()


def like_another(m: Small, x: torch.Tensor) -> torch.Tensor:
    """A mask in the dtype, shape or size of a tensor with gradient has none itself."""
    hidden = m.linear(x)
    mask = x > 0
    found = mask.type_as(hidden) + mask.to(hidden) + x[:1].expand_as(hidden)
    return (hidden * (found + x.flatten().view_as(hidden) + x.t().reshape_as(hidden))).sum()


def regrouped(m: Small, x: torch.Tensor) -> torch.Tensor:
    hidden = m.linear(x).flatten().unflatten(0, (2, 4, 4)).transpose(0, 1).contiguous()
    return (hidden.view(-1, 4) * x.view_as(x)).sum().to(torch.float64)


BODIES: tuple[Body, ...] = (
    in_place,
    in_place_on_a_dead_view,
    write_to_a_column,
    write_through_two_views,
    fill_parts,
    masked,
    no_grad_region,
    inference_region,
    checkpointed,
    several_outputs,
    write_to_one_of_several_outputs,
    constants,
    means,
    shapes_only,
    like_another,
    regrouped,
)


@torch.library.custom_op("autopar_tests::cubed", mutates_args=())
def cubed(x: torch.Tensor) -> torch.Tensor:
    return x**3


@cubed.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def keep(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
    ctx.save_for_backward(inputs[0])


def halved(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    """Not the derivative: what counts is what was registered."""
    return gradient * ctx.saved_tensors[0]


cubed.register_autograd(halved, setup_context=keep)


def test_operator_with_its_own_backward() -> None:
    model, inputs = small(lambda m, x: cubed(m.linear(x)).sum())
    graph = captured_equals_eager(model, inputs)
    assert "autopar_tests.cubed.default" in {node.op for node in graph.nodes}


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_equal(body: Body) -> None:
    model, inputs = small(body)
    graph = captured_equals_eager(model, inputs)
    for node in graph.nodes:
        name = node.op.split(".")[1] if not node.is_leaf else ""
        assert not name.endswith("_") or name.startswith("__"), f"{node} is in place"
        assert node.op != "_operator.getitem"


def test_moving_average_in_a_buffer() -> None:
    def body(m: Small, x: torch.Tensor) -> torch.Tensor:
        hidden = m.linear(x)
        with torch.no_grad():
            m.average.mul_(0.9).add_(hidden.mean(0), alpha=0.1)
            m.average[0] = 7.0
        return (hidden - m.average).pow(2).sum()

    model, inputs = small(body, average=torch.zeros(4))
    graph = captured_equals_eager(model, inputs)
    assert [key for key, _ in graph.mutations] == ["average"]


def test_buffer_replaced_by_assignment() -> None:
    def body(m: Small, x: torch.Tensor) -> torch.Tensor:
        m.steps = m.steps + 1
        return (m.linear(x) * m.steps).sum()

    model, inputs = small(body, steps=torch.zeros(()))
    graph = captured_equals_eager(model, inputs)
    assert [key for key, _ in graph.mutations] == ["steps"]


def test_dropout_stays_where_it_is_on() -> None:
    model, inputs = small(lambda m, x: F.dropout(m.linear(x), 0.5, m.training).sum())
    torch.manual_seed(3)
    expected = model(**inputs)
    from autopar.capture import capture
    from tests.capture.interpret import interpret

    graph = capture(model, inputs)
    torch.manual_seed(3)
    params = dict(model.named_parameters())
    assert graph.loss is not None
    assert torch.equal(interpret(graph, params, {}, inputs)[graph.loss], expected)
    assert "aten.dropout.default" not in {n.op for n in capture(model.eval(), inputs).nodes}


def test_batch_norm_twice() -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.norm(self.norm(x).tanh()) * x).pow(2).sum()

    _, inputs = small(in_place)
    captured_equals_eager(Twice().double(), inputs)
    eval_graph = captured_equals_eager(Twice().double().eval(), inputs)
    assert not eval_graph.mutations


class Cached(nn.Module):
    """Makes a table at the first call and keeps it for the next ones, in three ways."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.kept = functools.lru_cache(self._made)

    @staticmethod
    @compile_compatible_method_lru_cache(maxsize=2)
    def numbers(size: int) -> torch.Tensor:
        """As transformers does it."""
        return torch.arange(size, dtype=torch.float64)

    @staticmethod
    def _made(size: int) -> torch.Tensor:
        return torch.arange(size, dtype=torch.float64)

    @functools.lru_cache(maxsize=2)  # noqa: B019
    def table(self, size: int) -> torch.Tensor:
        """Of a method."""
        return torch.ones(size, dtype=torch.float64) * 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.linear(x) * self.table(x.shape[0])[:, None]
        return (made + self.kept(x.shape[1]) * self.numbers(x.shape[1])).sum()


def test_caches_hold_nothing_of_a_capture() -> None:
    model = Cached().double()
    x = torch.randn(8, 4, dtype=torch.float64)
    for _ in range(2):
        captured_equals_eager(model, {"x": x})


def test_a_group_norm_of_data_is_laid_out() -> None:
    """Torch's kernel crashes on a channels-last input without gradient, which no user's copy prevents
    once captured: copies are no-ops in a graph."""

    def body(m: Small, x: torch.Tensor) -> torch.Tensor:
        image = F.relu(x.view(2, 2, 2, 4).permute(0, 3, 1, 2).contiguous())
        return F.group_norm(image, 1, m.linear.weight[0], m.linear.bias).square().sum()

    model, inputs = small(body)
    captured_equals_eager(model, inputs)


class Normalised(nn.Module):
    """Power iteration into buffers through ``out=``, as spectral norm does it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 6)
        self.second = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).tanh()).square().mean()


def test_out_arguments_become_results() -> None:
    torch.manual_seed(0)
    graph = capture(Normalised(), {"x": torch.randn(4, 8)})
    assert not [node.op for node in graph.nodes if node.op.endswith((".out", "_out"))]
    assert {name.rsplit(".", 1)[-1] for name, _ in graph.mutations} == {"_u", "_v"}
