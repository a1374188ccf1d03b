"""Random operands that an operator accepts: indices below what they index, logarithms of positives."""

from __future__ import annotations

import torch

from autopar.ir.graph import Node, Tensor, short

POSITIVE = {
    "log", "log1p", "log2", "sqrt", "rsqrt", "pow", "reciprocal", "kl_div", "fmod", "remainder",
    "log10", "lgamma", "digamma", "xlogy", "float_power", "special_entr", "floor_divide",
}  # fmt: skip
INSIDE_ONE = {"acos", "asin", "atanh", "erfinv", "binary_cross_entropy"}
ABOVE_ONE = {"acosh"}
COMPARED = {"eq", "ne", "isclose"}
"""Values meet each other."""
ODD = {"isnan": float("nan"), "isinf": float("inf")}
"""What is looked for is among the values."""
POSITIVE_BEHIND_FIRST = {"div", "true_divide", "addcdiv", "cross_entropy_sum", "count_valid"}


def draw(
    node: Node, operands: tuple[Tensor, ...], generator: torch.Generator
) -> list[torch.Tensor]:
    """One value per operand, floats as float64; a tensor that is read twice has one value."""
    drawn: dict[str, torch.Tensor] = {}
    for place, tensor in enumerate(operands):
        value = _one(node, operands, place, generator)
        drawn.setdefault(tensor.name, value)
    return [drawn[tensor.name] for tensor in operands]


def _one(
    node: Node, operands: tuple[Tensor, ...], place: int, generator: torch.Generator
) -> torch.Tensor:
    tensor, kind = operands[place], short(node.op)
    if tensor.dtype == "bool":
        made = torch.rand(tensor.shape, generator=generator) < 0.6
        if made.dim() > 1:  # in some rows all are true
            made |= torch.rand(made.shape[:-1], generator=generator)[..., None] < 0.3
        return made
    if "float" not in tensor.dtype:
        return _integers(node, operands, place, generator)
    value = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
    is_variance = kind == "batch_norm" and place == len(operands) - 1
    if kind in COMPARED:
        return value.round()
    if kind in ODD:
        return torch.where(value < 0.5, ODD[kind], value)
    if kind in INSIDE_ONE:
        return value * 0.9 + 0.05
    if kind in ABOVE_ONE:
        return value + 1.5
    if kind == "bucketize" and place:
        return value.sort().values
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
    elif kind in IGNORES and kind != "count_valid":
        low, high = 0, operands[0].shape[1 if len(operands[0].shape) > 1 else 0]
    elif kind == "gather":
        dim = node.args[1]
        low, high = 0, operands[0].shape[dim if isinstance(dim, int) else 0]
    dtype = getattr(torch, tensor.dtype)
    if place == 2 and kind in ("embedding_bag", "transformers::grouped_mm_fallback"):
        return _bounds(operands, kind, generator)
    if kind == "autopar_static::repeats":
        return torch.full(tensor.shape, 2)  # their sum is the size of what is made
    value = torch.randint(low, high, tensor.shape, generator=generator, dtype=dtype)
    if kind in IGNORES and place == IGNORES[kind] and value.dim():
        value[torch.rand(tensor.shape, generator=generator) < 0.25] = _ignored(node)
    return value


def _bounds(operands: tuple[Tensor, ...], kind: str, generator: torch.Generator) -> torch.Tensor:
    """Where groups of rows begin (bags) or end (products)."""
    count, rows = operands[2].shape[0], operands[1 if kind == "embedding_bag" else 0].shape[0]
    bounds = torch.randint(0, rows + 1, (count,), generator=generator).sort().values
    bounds[0 if kind == "embedding_bag" else -1] = 0 if kind == "embedding_bag" else rows
    return bounds


IGNORES = {
    "cross_entropy_sum": 1, "count_valid": 0, "nll_loss": 1, "nll_loss_nd": 1, "cross_entropy_loss": 1,
}  # fmt: skip
"""Which operand may hold the class that does not count."""
IGNORE_INDEX_AT = {"cross_entropy_sum": 3, "count_valid": 1}


def _ignored(node: Node) -> int:
    """The class that does not count."""
    place = IGNORE_INDEX_AT.get(short(node.op), 4)
    given = node.args[place] if place < len(node.args) else -100
    return given if isinstance(given, int) else -100
