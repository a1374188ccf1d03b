"""Autocast is explicit in the graph, and gives what torch gives, to the bit."""

from __future__ import annotations

import copy

import pytest
import torch

from autopar.capture import capture
from tests.capture.compare import eager_loss
from tests.capture.interpret import interpret
from tests.capture.small import Small, small
from tests.models import CASES


@pytest.mark.parametrize("name", list(CASES))
def test_equal_to_the_bit(name: str) -> None:
    model, inputs, loss = CASES[name]()
    graph = capture(model, inputs, loss=loss, autocast=torch.bfloat16)
    params = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    values = interpret(graph, params, dict(model.named_buffers()), inputs)
    for key, tensor in graph.tensors.items():
        assert str(values[key].dtype) == f"torch.{tensor.dtype}", key
    assert graph.loss is not None
    values[graph.loss].backward()
    eager = copy.deepcopy(model)
    with torch.autocast("cpu", torch.bfloat16):
        expected = eager_loss(eager, inputs, loss)
    expected.backward()
    assert torch.equal(values[graph.loss], expected)
    for key, parameter in eager.named_parameters():
        if parameter.grad is not None:
            assert torch.equal(params[key].grad, parameter.grad), key


def test_a_parameter_is_cast_once() -> None:
    model, inputs = small(lambda m, x: m.linear(m.linear(x)).sum())
    graph = capture(model.float(), {"x": inputs["x"].float()}, autocast=torch.bfloat16)
    casts = [n for n in graph.nodes if n.op == "aten.to.dtype" and "linear_weight" in n.operands]
    assert len(casts) == 1


def test_a_region_switched_off_inside() -> None:
    def body(m: Small, x: torch.Tensor) -> torch.Tensor:
        low = m.linear(x)
        with torch.autocast("cpu", enabled=False):
            return m.linear(low.float()).sum()

    model, inputs = small(body)
    graph = capture(model.float(), {"x": inputs["x"].float()}, autocast=torch.bfloat16)
    dtypes = [node.outputs[0].dtype for node in graph.nodes if node.op == "aten.linear.default"]
    assert dtypes == ["bfloat16", "float32"]


def test_products_inside_composite_operators() -> None:
    def body(m: Small, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bi,oi->bo", x, m.linear.weight).float().sum()

    model, inputs = small(body)
    narrow = {"x": inputs["x"].float()}
    graph = capture(model.float(), narrow, autocast=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(**narrow)
    params = dict(model.named_parameters())
    assert graph.loss is not None
    assert torch.equal(interpret(graph, params, {}, narrow)[graph.loss], expected)
