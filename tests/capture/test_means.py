"""Mean losses become sums and counts, and equal torch exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from autopar.capture import capture
from autopar.errors import CaptureError
from tests.capture.compare import captured_equals_eager
from tests.capture.small import Small, small

TARGET = torch.tensor([0, 1, -100, 3, 2, -100, 1, 0])
SEGMENTS = TARGET.where(TARGET >= 0, 255)
WEIGHT = torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)
LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cross entropy": lambda y: F.cross_entropy(y, TARGET),
    "ignore_index": lambda y: F.cross_entropy(y, TARGET % 4, ignore_index=1),
    "smoothing": lambda y: F.cross_entropy(y, TARGET, label_smoothing=0.3),
    "weights": lambda y: F.cross_entropy(y, TARGET, WEIGHT),
    "weights and smoothing": lambda y: F.cross_entropy(y, TARGET, WEIGHT, label_smoothing=0.3),
    "weights, and no class where ignored": lambda y: F.cross_entropy(
        y, SEGMENTS, WEIGHT, ignore_index=255
    ),
    "sum": lambda y: F.cross_entropy(y, TARGET, reduction="sum"),
    "none": lambda y: F.cross_entropy(y, TARGET, reduction="none").sum(),
    "images": lambda y: F.cross_entropy(
        y.reshape(2, 4, 4).transpose(1, 2), TARGET.reshape(2, 4), label_smoothing=0.1
    ),
    "probabilities": lambda y: F.cross_entropy(y, y.detach().softmax(1)),
    "nll": lambda y: F.nll_loss(y.log_softmax(1), TARGET, WEIGHT),
    "nll, and no class where ignored": lambda y: F.nll_loss(
        y.log_softmax(1), SEGMENTS, WEIGHT, ignore_index=255
    ),
    "mse": lambda y: F.mse_loss(y, y.detach() + 1),
    "l1": lambda y: F.l1_loss(y, y.detach() * 2),
    "smooth l1": lambda y: F.smooth_l1_loss(y, y.detach() + 1, beta=0.5),
    "huber": lambda y: F.huber_loss(y, y.detach() + 1, delta=0.5),
    "bce with logits": lambda y: F.binary_cross_entropy_with_logits(
        y, y.detach().sigmoid(), pos_weight=WEIGHT
    ),
    "bce": lambda y: F.binary_cross_entropy(y.sigmoid(), y.detach().sigmoid()),
    "kl": lambda y: F.kl_div(y.log_softmax(1), y.detach().softmax(1), reduction="batchmean"),
    "kl of one row": lambda y: F.kl_div(y, y.detach()[:1].softmax(1)),
    "kl mean": lambda y: F.kl_div(y, y.detach(), log_target=True),
    "mean": lambda y: y.pow(2).mean(),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
def test_equal(name: str) -> None:
    model, inputs = small(lambda m, x: m.linear(x))
    model.body = lambda m, x: LOSSES[name](m.linear(x))
    graph = captured_equals_eager(model, inputs)
    operators = {node.op for node in graph.nodes}
    assert "aten.cross_entropy_loss.default" not in operators or name in ("none", "probabilities")
    assert "aten.mean.default" not in operators


def test_all_ignored_is_nan_as_in_torch() -> None:
    from tests.capture.interpret import interpret

    model, inputs = small(lambda m, x: F.cross_entropy(m.linear(x), torch.full((8,), -100)))
    graph = capture(model, inputs)
    assert graph.loss is not None
    values = interpret(graph, dict(model.named_parameters()), {}, inputs)
    assert values[graph.loss].isnan()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_mean_sums_wide(dtype: torch.dtype) -> None:
    from tests.capture.interpret import interpret

    def body(m: Small, x: torch.Tensor) -> Any:
        return (m.linear(x) * 0 + 300).repeat(1, 1000).mean()

    model, inputs = small(body)
    model.to(dtype)
    graph = capture(model, {"x": inputs["x"].to(dtype)})
    assert graph.loss is not None
    params = dict(model.named_parameters())
    loss = interpret(graph, params, {}, {"x": inputs["x"].to(dtype)})[graph.loss]
    assert loss.dtype == dtype and float(loss.detach()) == 300


def test_trained_class_weights_are_refused() -> None:
    model, inputs = small(lambda m, x: F.cross_entropy(m.linear(x), TARGET, m.linear.bias))
    with pytest.raises(CaptureError, match="argument 'weight'"):
        capture(model, inputs)
