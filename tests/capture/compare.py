"""The user's model beside its captured graph: loss, outputs, gradients, buffers."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from autopar.capture import capture
from autopar.ir.graph import Graph
from tests.capture.interpret import interpret


def captured_equals_eager(
    model: nn.Module,
    inputs: Mapping[str, Any],
    loss: Callable[..., torch.Tensor] | None = None,
    tolerance: float = 1e-12,
) -> Graph:
    """Capture, run both, compare; gives the graph for further questions."""
    graph = capture(model, inputs, loss=loss)
    graph.check()
    params = {
        name: p.detach().clone().requires_grad_(p.requires_grad)
        for name, p in model.named_parameters()
    }
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    tensors = {key: value for key, value in inputs.items() if torch.is_tensor(value)}
    assert graph.loss is not None
    values = interpret(graph, params, buffers, tensors)
    values[graph.loss].backward()

    eager = copy.deepcopy(model)
    expected = eager_loss(eager, inputs, loss)
    expected.backward()
    close(values[graph.loss], expected, tolerance, "loss")
    want = {name: p.grad for name, p in eager.named_parameters()}
    scale = max(float(g.abs().max()) for g in want.values() if g is not None)
    for name, gradient in want.items():
        got = params[name].grad
        assert (got is None) == (gradient is None), f"{name}: one has no gradient"
        if gradient is not None and got is not None:
            close(got, gradient, tolerance, name, scale)
    mutated = {key: values[name] for key, name in graph.mutations}
    for name, buffer in eager.named_buffers():
        close(mutated.get(name, buffers[name]), buffer, tolerance, name)
    for name, tensor in graph.tensors.items():
        assert values[name].requires_grad == tensor.differentiable, (
            f"{name}: differentiable is wrong"
        )
    return graph


def eager_loss(
    model: nn.Module, inputs: Mapping[str, Any], loss: Callable[..., torch.Tensor] | None
) -> torch.Tensor:
    """The loss that plain PyTorch computes."""
    if loss is None:
        output = model(**inputs)
        found = output if torch.is_tensor(output) else output["loss"]
        assert isinstance(found, torch.Tensor)
        return found
    names = list(inspect.signature(loss).parameters)[1:]
    targets = {key: value for key, value in inputs.items() if key in names}
    return loss(model(**{key: v for key, v in inputs.items() if key not in names}), **targets)


def close(
    got: torch.Tensor, want: torch.Tensor, tolerance: float, what: str, scale: float = 0.0
) -> None:
    """Error relative to the largest entry, or to a given scale where that is larger."""
    assert got.shape == want.shape, what
    difference = _largest(got.detach().double() - want.detach().double())
    size = max(_largest(want.detach().double()), scale, 1e-30)
    assert difference <= tolerance * size, f"{what}: {difference} against {size}"


def _largest(values: torch.Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0
