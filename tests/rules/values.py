"""Random operands that an operator accepts: indices below what they index, logarithms of positives."""

from __future__ import annotations

import torch

from autopar.graph import Node, Tensor, short

POSITIVE = {
    "log", "log1p", "log2", "sqrt", "rsqrt", "pow", "reciprocal", "kl_div", "fmod", "remainder",
}  # fmt: skip
INSIDE_ONE = {"acos", "asin", "binary_cross_entropy"}
POSITIVE_BEHIND_FIRST = {"div", "addcdiv", "cross_entropy_sum", "count_valid"}


def draw(
    node: Node, operands: tuple[Tensor, ...], generator: torch.Generator
) -> list[torch.Tensor]:
    """One value per operand, floats as float64."""
    return [_one(node, operands, place, generator) for place in range(len(operands))]


def _one(
    node: Node, operands: tuple[Tensor, ...], place: int, generator: torch.Generator
) -> torch.Tensor:
    tensor, kind = operands[place], short(node.op)
    if tensor.dtype == "bool":
        return torch.rand(tensor.shape, generator=generator) < 0.6
    if "float" not in tensor.dtype:
        return _integers(node, operands, place, generator)
    value = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
    is_variance = kind == "batch_norm" and place == len(operands) - 1
    if kind in INSIDE_ONE:
        return value * 0.9 + 0.05
    if kind in POSITIVE or is_variance or (place and kind in POSITIVE_BEHIND_FIRST):
        return value + 0.5
    return torch.randn(tensor.shape, generator=generator, dtype=torch.float64)


def _integers(
    node: Node, operands: tuple[Tensor, ...], place: int, generator: torch.Generator
) -> torch.Tensor:
    tensor, kind = operands[place], short(node.op)
    low, high = 1, 6
    if kind == "embedding":
        low, high = 0, operands[0].shape[0]
    elif kind == "cross_entropy_sum":
        low, high = 0, operands[0].shape[1 if len(operands[0].shape) > 1 else 0]
    elif kind == "gather":
        dim = node.args[1]
        low, high = 0, operands[0].shape[dim if isinstance(dim, int) else 0]
    dtype = getattr(torch, tensor.dtype)
    value = torch.randint(low, high, tensor.shape, generator=generator, dtype=dtype)
    if kind in ("cross_entropy_sum", "count_valid") and value.dim():
        value[torch.rand(tensor.shape, generator=generator) < 0.25] = _ignored(node)
    return value


def _ignored(node: Node) -> int:
    """The class that does not count."""
    place = 3 if short(node.op) == "cross_entropy_sum" else 1
    given = node.args[place] if place < len(node.args) else -100
    return given if isinstance(given, int) else -100
