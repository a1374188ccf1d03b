"""Refuses gradients that a step does not compute.

These are gradients of inputs, gradients of gradients, and gradients of a changed set of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch.distributed.tensor import DTensor

from autopar.errors import InputError
from autopar.runtime import _torch
from autopar.runtime.sharded_parameter import ShardedParameter, refuse_hooks

LISTED = 4
"""Largest number of names in a message."""


def refuse_other_gradients(
    inputs: Mapping[str, torch.Tensor],
    slots: Sequence[ShardedParameter],
    trained: Mapping[str, bool],
) -> None:
    """Raise `InputError` before a forward whose backward would not compute the requested gradients."""
    asking = [key for key, tensor in inputs.items() if tensor.requires_grad]
    if asking:
        raise InputError(
            f"The input {_listed(asking)} requires a gradient, but a parallel step computes "
            "gradients of its parameters only. Pass it detached (x.detach()), or make its "
            "source a part of the model: a soft prompt as an nn.Parameter, another module as a "
            "submodule."
        )
    refuse_changed(slots, trained)
    refuse_hooks(slots)


def refuse_changed(slots: Sequence[ShardedParameter], trained: Mapping[str, bool]) -> None:
    """Raise `InputError` if a parameter's `requires_grad` has changed since the step was planned."""
    changed = [s.name for s in slots if s.parameter.requires_grad != trained[s.name]]
    if changed:
        now = "requires" if not trained[changed[0]] else "no longer requires"
        raise InputError(
            f"{_listed(changed)} {now} gradients, which the step was not planned for. Call "
            "requires_grad_() before autopar.parallelize; during training, load "
            "parallel.full_state_dict() into the model, change it there, and parallelize it "
            "again."
        )


def arriving(
    leaves: Sequence[torch.Tensor], *begin: Callable[[], None]
) -> Callable[[torch.Tensor], torch.Tensor | None]:
    """Return the gradient hook of a result: it checks the backward, then calls `begin`.

    The hook must not refer to the result's graph, which refers to it.
    """

    def met(gradient: torch.Tensor) -> torch.Tensor | None:
        if torch.is_grad_enabled():
            raise InputError(
                "create_graph=True asks for gradients of gradients, which a parallel step does "
                "not compute outside its model. Compute such terms inside the model's forward "
                "or its loss."
            )
        if not any(map(_torch.is_reached, leaves)):
            raise InputError(
                "torch.autograd.grad(loss, ...) and loss.backward(inputs=...) do not reach the "
                "parameters of a parallel step, whose gradients are summed over ranks at the "
                "end of a whole backward. Call loss.backward(), and read p.grad."
            )
        for each in begin:
            each()
        return gradient.full_tensor() if isinstance(gradient, DTensor) else None

    return met


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(map(repr, names[:LISTED])) + more
