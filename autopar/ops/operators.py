"""Maps an operator's name to a callable: ATen overloads and autopar's own operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from autopar.errors import RuleError
from autopar.ir.graph import Arg, DType, Ref
from autopar.ops import experts, selections  # noqa: F401  register their operators

DEAR = (
    "mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_fused_attention_overrideable",
)  # fmt: skip
"""ATen products, convolutions and attention, whose results selective recomputation keeps."""


@cache
def dear_kernels() -> frozenset[Any]:
    """Return the overloads of `DEAR` that this PyTorch has."""
    aten = torch.ops.aten
    return frozenset(getattr(aten, name).default for name in DEAR if hasattr(aten, name))


def cross_entropy_sum(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    classes: int | None = None,
) -> torch.Tensor:
    """Return the sum of the cross-entropies of all valid targets; logits after `classes` are padding."""
    return F.cross_entropy(
        logits if classes is None else logits[:, :classes],
        target,
        weight,
        ignore_index=ignore_index,
        reduction="sum",
        label_smoothing=label_smoothing,
    )


def count_valid(
    target: torch.Tensor, ignore_index: int = -100, weight: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the number of valid targets, or the sum of their class weights: a mean's divisor."""
    # In uint8, -100 would be 156, which is a class.
    target = target.long()
    valid = target != ignore_index
    if weight is None:
        return valid.sum()
    # What is ignored may be no class: 255 in maps of segments.
    of_targets = weight[torch.where(valid, target, 0)]
    return torch.where(valid, of_targets, 0.0).sum()


def batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return training-mode batch norm of x [n, c, ...], and the new running mean and variance [c]."""
    new_mean, new_var = running_mean.clone(), running_var.clone()
    y = F.batch_norm(x, new_mean, new_var, weight, bias, True, momentum, eps)
    return y, new_mean, new_var


def strided(
    x: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int
) -> torch.Tensor:
    """Return a window on x's entries in row-major order, whatever x's memory layout."""
    return x.contiguous().as_strided(size, stride, offset)


_OWN: dict[str, Callable[..., Any]] = {
    "autopar.cross_entropy_sum": cross_entropy_sum,
    "autopar.count_valid": count_valid,
    "autopar.batch_norm": batch_norm,
    "autopar.strided": strided,
}


def callable_of(op: str) -> Callable[..., Any]:
    """Return the function for ``aten.linear.default`` or ``autopar.count_valid``."""
    if op in _OWN:
        return _OWN[op]
    namespace, _, rest = op.partition(".")
    name, _, overload = rest.rpartition(".")
    try:
        found = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    except (AttributeError, RuntimeError):
        raise RuleError(
            f"There is no operator {op!r} here. If it is a custom one, import the module that "
            "registers it before planning."
        ) from None
    return found  # type: ignore[no-any-return]


def makes_tensors(op: str) -> bool:
    """Return whether the operator takes a device on which to make its result, as ``arange`` does."""
    schema = getattr(callable_of(op), "_schema", None)
    return schema is not None and any(argument.name == "device" for argument in schema.arguments)


def returns_list(op: str) -> bool:
    """Return whether the operator returns a list of tensors, even if it has only one element."""
    returns: Sequence[Any] = getattr(getattr(callable_of(op), "_schema", None), "returns", ())
    return len(returns) == 1 and str(returns[0].type) == "List[Tensor]"


def bind(arg: Arg, tensors: dict[str, Any] | Callable[[str], Any]) -> Any:
    """Return an argument with tensors and dtypes substituted."""
    look_up = tensors if callable(tensors) else tensors.__getitem__
    if isinstance(arg, Ref):
        return look_up(arg.name)
    if isinstance(arg, DType):
        return getattr(torch, arg.name)
    if isinstance(arg, tuple):
        return [bind(item, look_up) for item in arg]
    return arg
