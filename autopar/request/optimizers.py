"""The `optimizer` option: its name, what it keeps and reads, and whether its step is fused.

A name has only the arguments that determine these, as in ``SGD(momentum=0.9)``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from autopar.errors import InputError
from autopar.request.coupling import Coupling, dependence_of
from autopar.utils.messages import argument

OptimizerLike = type[torch.optim.Optimizer] | partial[torch.optim.Optimizer] | str
"""A class; a class with arguments, of which only those in `COUNT` matter; or either as text."""
Reads = Literal["shards", "parameter", "model"]
"""What an update of a parameter's shard needs: the shard, the whole parameter, or all parameters."""
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


@dataclass(frozen=True)
class Update:
    """What an optimizer keeps for each parameter, and what its update of one reads.

    `states` counts tensors of the parameter's size, which are sharded as it is.  `whole_states` are the
    bytes of its other states relative to the parameter's; every rank holds all of them.
    """

    states: float = 2.0
    whole_states: float = 0.0
    reads: Reads = "shards"


ADAMW = Update()
READS: Mapping[Coupling, Reads] = {
    Coupling.ENTRY: "shards",
    Coupling.PARAMETER: "parameter",
    Coupling.MODEL: "model",
}
TRIED = (256, 192)
"""Shape of the parameter of a trial step; not square, so that states of other shapes are told apart."""


def update_of(optimizer: OptimizerLike) -> Update:
    """Return what an optimizer keeps and reads, measured by a trial step on one matrix.

    Raise `InputError` if the optimizer cannot be built or stepped.
    """
    kind = maker_of(optimizer)
    parameter = torch.nn.Parameter(torch.ones(TRIED))
    parameter.grad = torch.ones(TRIED)
    try:
        built = kind([parameter])
        built.step()
    except Exception as error:
        raise InputError(
            f"{argument('optimizer', name_of(optimizer))} cannot be run to measure its state "
            f"({type(error).__name__}: {error}). Pass an optimizer with as much state, e.g. "
            f"{argument('optimizer', 'AdamW')}; you may train with any."
        ) from error
    tensors = [tensor for tensor in _tensors(built.state[parameter]) if tensor.dim()]
    alike = sum(tensor.shape == parameter.shape for tensor in tensors)
    others = sum(tensor.nbytes for tensor in tensors if tensor.shape != parameter.shape)
    reads = READS[dependence_of(built).coupling]
    return Update(float(alike), others / parameter.nbytes, reads)


def _tensors(state: Any) -> Iterator[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, (Mapping, list, tuple)):
        for each in state.values() if isinstance(state, Mapping) else state:
            yield from _tensors(each)


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
