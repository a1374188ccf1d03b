"""Numbers over all parameters of a model, whichever ranks hold them: counts, norms, checks for NaN."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch.distributed.tensor import DTensor

from autopar.errors import InputError

Number = float | bool
Reduction = Literal["sum", "max", "min", "any", "all"]


def check_reduction(op: str) -> None:
    """Raise `InputError` for a reduction that does not exist."""
    if op not in _REDUCTIONS:
        raise InputError(
            f"reduce_over_parameters has no reduction {op!r}; there are {', '.join(_REDUCTIONS)}."
        )


@torch.no_grad()
def numbers_of(
    function: Callable[[torch.Tensor], Any], parameters: Iterable[tuple[str, torch.Tensor]]
) -> list[Number]:
    """Return the function's number of each parameter; None is left out."""
    found = ((name, function(parameter)) for name, parameter in parameters)
    return [_number(name, value) for name, value in found if value is not None]


def reduced(numbers: Sequence[Number], op: Reduction) -> Number:
    """Return the sum, maximum, ... of numbers; a maximum or minimum with a NaN is NaN, as in torch.

    Raises `InputError` for the maximum or minimum of no numbers.
    """
    if op in ("max", "min"):
        if not numbers:
            raise InputError(f"There is no {op} of no numbers: no parameter has one.")
        nan = next((number for number in numbers if math.isnan(number)), None)
        if nan is not None:
            return nan
    return _REDUCTIONS[op](numbers)


_REDUCTIONS: dict[str, Callable[[Sequence[Number]], Number]] = {
    "sum": sum, "max": max, "min": min, "any": any, "all": all,
}  # fmt: skip


def _number(name: str, value: Any) -> Number:
    if isinstance(value, DTensor):
        value = value.full_tensor()
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if not isinstance(value, (bool, int, float)):
        shape = f" of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else ""
        raise InputError(
            f"The function of reduce_over_parameters returned a {type(value).__name__}{shape} for "
            f"{name!r}. Let it return one number, or None to leave the parameter out."
        )
    return value
