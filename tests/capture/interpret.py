"""Run a Graph eagerly on real tensors: the reference that proves what capture recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from autopar.ir.graph import Arg, DType, Graph, Node, Ref

Values = Mapping[str, torch.Tensor]


def interpret(
    graph: Graph, params: Values, buffers: Values, inputs: Values
) -> dict[str, torch.Tensor]:
    """Every tensor of the graph by name; leaves are looked up by the user's names."""
    given = {"parameter": params, "buffer": buffers, "input": inputs}
    values: dict[str, torch.Tensor] = {}
    for node in graph.nodes:
        if node.op == "constant":
            made: Any = _constant(node)
        elif node.is_leaf:
            made = given[node.op][node.target]
        else:
            args = [_real(arg, values) for arg in node.args]
            kwargs = {key: _real(arg, values) for key, arg in node.kwargs}
            made = function(node.op)(*args, **kwargs)
        parts = tuple(made) if isinstance(made, (tuple, list)) else (made,)
        # Formulas of a backward give None for what nobody asks for.
        parts = tuple(torch.empty(0) if part is None else part for part in parts)
        for tensor, value in zip(node.outputs, parts, strict=True):
            assert tuple(value.shape) == tensor.shape, f"{node}: got {tuple(value.shape)}"
            values[tensor.name] = value
    return values


def function(op: str) -> Callable[..., Any]:
    """The eager function that an operator name stands for."""
    if op in OURS:
        return OURS[op]
    namespace, name, overload = op.split(".")
    found: Callable[..., Any] = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    return found


def _cross_entropy_sum(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    classes: int | None = None,
) -> torch.Tensor:
    return F.cross_entropy(
        logits[:, :classes] if classes is not None else logits,
        target,
        weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction="sum",
    )


def _count_valid(
    target: torch.Tensor, ignore_index: int, weight: torch.Tensor | None = None
) -> torch.Tensor:
    valid = target != ignore_index
    return valid.sum() if weight is None else weight[target[valid]].sum()


def _batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    mean, variance = running_mean.clone(), running_var.clone()
    out = F.batch_norm(x, mean, variance, weight, bias, True, momentum, eps)
    return out, mean, variance


OURS: dict[str, Callable[..., Any]] = {
    "autopar.cross_entropy_sum": _cross_entropy_sum,
    "autopar.count_valid": _count_valid,
    "autopar.batch_norm": _batch_norm,
    "autopar.strided": torch.as_strided,
}


def _constant(node: Node) -> torch.Tensor:
    (tensor,) = node.outputs
    return torch.tensor(node.args[0], dtype=getattr(torch, tensor.dtype)).reshape(tensor.shape)


def _real(arg: Arg, values: Values) -> Any:
    if isinstance(arg, Ref):
        return values[arg.name]
    if isinstance(arg, DType):
        return getattr(torch, arg.name)
    return [_real(item, values) for item in arg] if isinstance(arg, tuple) else arg
