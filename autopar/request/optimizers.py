"""The `optimizer` option: its name, the size of its state, and whether its step is fused.

A name has only the arguments that determine these, as in ``SGD(momentum=0.9)``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from autopar.errors import InputError
from autopar.utils.messages import argument

OptimizerLike = type[torch.optim.Optimizer] | partial[torch.optim.Optimizer] | str
"""A class; a class with arguments, of which only those in `COUNT` matter; or either as text."""
COUNT = ("momentum", "amsgrad", "centered", "fused")
"""Arguments that determine the optimizer state and how it is updated."""
EXAMPLES = "'AdamW(fused=True)' or 'SGD(momentum=0.9)'"


def name_of(optimizer: OptimizerLike | Callable[..., torch.optim.Optimizer]) -> str:
    """Return an optimizer's name as in plans."""
    if isinstance(optimizer, str):
        return optimizer
    if isinstance(optimizer, partial):
        given = {key: optimizer.keywords[key] for key in COUNT if optimizer.keywords.get(key)}
        said = ", ".join(f"{key}={value!r}" for key, value in given.items())
        return name_of(optimizer.func) + (f"({said})" if said else "")
    return getattr(optimizer, "__name__", str(optimizer))


def is_fused(name: str) -> bool:
    """Whether one kernel updates a parameter, instead of one kernel per operator."""
    return bool(_parts(name)[1].get("fused"))


def states_of(optimizer: OptimizerLike) -> float:
    """Return the optimizer state per parameter in tensors of its size, measured by a trial step.

    Raise `InputError` if the optimizer cannot be built or stepped.
    """
    kind = maker_of(optimizer)
    parameter = torch.nn.Parameter(torch.ones(64, 64))
    parameter.grad = torch.ones(64, 64)
    try:
        built = kind([parameter])
        built.step()
    except Exception as error:
        raise InputError(
            f"{argument('optimizer', name_of(optimizer))} cannot be run to measure its state "
            f"({type(error).__name__}: {error}). Pass an optimizer with as much state, e.g. "
            f"{argument('optimizer', 'AdamW')}; you may train with any."
        ) from error
    tensors = [v for v in built.state[parameter].values() if isinstance(v, torch.Tensor)]
    return sum(tensor.numel() for tensor in tensors if tensor.dim()) / parameter.numel()


def maker_of(optimizer: OptimizerLike) -> Any:
    """Return a callable that makes the optimizer from a list of parameters.

    Raise `InputError` for a name that `torch.optim` does not have.
    """
    if not isinstance(optimizer, str):
        return optimizer
    name, given = _parts(optimizer)
    kind = getattr(torch.optim, name, None)
    if not isinstance(kind, type):
        known = ", ".join(n for n in dir(torch.optim) if n[0].isupper() and n != "Optimizer")
        raise InputError(
            f"torch.optim has no optimizer {optimizer!r}; it has {known}, and with some of the "
            f"arguments {', '.join(COUNT)}: {EXAMPLES}."
        )
    return partial(kind, **given)


def _parts(text: str) -> tuple[str, Mapping[str, Any]]:
    """Parse ``SGD(momentum=0.9)`` into ``("SGD", {"momentum": 0.9})``; any other text is a name."""
    try:
        call = ast.parse(text, mode="eval").body
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)) or call.args:
            return text, {}
        given = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    except (SyntaxError, ValueError):
        return text, {}
    return (call.func.id, given) if given and given.keys() <= set(COUNT) else (text, {})
