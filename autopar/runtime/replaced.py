"""Remembers the parameters of plain models that were parallelized.

The parallel model trains copies of its own.  What still uses the plain parameters would be trained
apart, or not at all: an optimizer of the plain model, or a second model that has a part in common.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass
from weakref import ref

from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from autopar.errors import InputError


@dataclass(frozen=True)
class Replaced:
    """A plain parameter's name, and the parallel model that replaces its model of so many parameters."""

    name: str
    owner: ref[nn.Module]
    count: int


_REPLACED: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""By plain parameter; of several parallel models the last one."""


def record(model: nn.Module, parallel: nn.Module) -> None:
    """Record that a parallel model replaces the parameters of a plain one."""
    named = dict(model.named_parameters())
    for name, parameter in named.items():
        _REPLACED[parameter] = Replaced(name, ref(parallel), len(named))


def refuse_optimizer(kind: str, parameters: Iterable[nn.Parameter]) -> None:
    """Raise `InputError` for an optimizer of the plain model if only the parallel model trains."""
    held = [p for p in parameters if p in _REPLACED]
    if held and all(parameter.grad is None for parameter in held):
        raise InputError(
            f"This {kind} has parameters of the model that was given to autopar.parallelize "
            f"({_REPLACED[held[0]].name!r} is the first), which get no gradients: the parallel model "
            "has its own. Create the optimizer from parallel.parameters(), after "
            "autopar.parallelize."
        )


def refuse_shared(model: nn.Module) -> None:
    """Raise `InputError` if a part of the model is trained by another parallel model.

    The same whole model may be parallelized again: the new parallel model begins with its values.
    """
    if not _shared(model):
        return
    gc.collect()  # parallel models that were dropped
    if names := _shared(model):
        raise InputError(
            f"The model shares {names[0]!r} and {len(names) - 1} more of its trained parameters with "
            "another model that was given to autopar.parallelize and is still in use. Each parallel "
            "model has parameters of its own, so training one would not change the other. Put both "
            "into one nn.Module whose forward calls both, and parallelize that; delete the other (del) "
            "if you do not use it any more; or give each a copy (copy.deepcopy) to train them apart."
        )


def _shared(model: nn.Module) -> list[str]:
    """Return the names of trained parameters that it shares with other models in use."""
    named = dict(model.named_parameters())
    held = {name: _REPLACED[p] for name, p in named.items() if p in _REPLACED}
    used = {name: each for name, each in held.items() if each.owner() is not None}
    owners = {id(each.owner()): each.count for each in used.values()}
    if len(used) == len(named) and list(owners.values()) == [len(named)]:
        return []
    return [name for name in used if named[name].requires_grad]
