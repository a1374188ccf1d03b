"""Views of a parameter along a sharded dim: torch gathers a copy, so writes to it are refused."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch.distributed.tensor import DTensor, Replicate

from autopar.errors import InputError
from autopar.runtime import _torch
from autopar.runtime.operators import _torch as dispatch

aten = torch.ops.aten
VIEWS = {
    aten.select.int: 1, aten.slice.Tensor: 1, aten.split.Tensor: 2, aten.split_with_sizes.default: 2,
    aten.diagonal.default: None,
}  # fmt: skip
"""View operators with the position of their dim argument; None: the operator uses two dims."""


class Part(DTensor):
    """A read-only gathered copy of a part of a parameter."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        writes = name in ("__setitem__", "__set__") or (name[-1:] == "_" and name[:2] != "__")
        if writes and args and isinstance(args[0], cls) and name != "requires_grad_":
            refuse_write(name)
        return _torch.plain_function(func, types, args, kwargs or {})


def refuse_write(name: str) -> NoReturn:
    """Raise `InputError` for a write into a part that was gathered."""
    raise InputError(
        f"{name} writes into a slice of a tensor that is sharded over the ranks along "
        "that dim: it would change a copy. Change the whole tensor on every rank, inside "
        "torch.no_grad(): whole = tensor.full_tensor(), then write to whole, then "
        "tensor.copy_(whole)."
    )


def viewed(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the operator; results that are not views of this rank's shard become a `Part`."""
    made, place = dispatch.unhandled(operator, args, kwargs), VIEWS[operator]
    cut = [kind for kind in args[0].placements if not isinstance(kind, Replicate)]
    if place is not None:
        dim = args[place] if len(args) > place else kwargs.get("dim", 0)
        cut = [kind for kind in cut if getattr(kind, "dim", dim) == dim % args[0].dim()]
    if not cut:
        return made
    return (
        [_part(one, args[0]) for one in made]
        if isinstance(made, list | tuple)
        else _part(made, args[0])
    )


def _part(made: DTensor, tensor: DTensor) -> DTensor:
    if made.shape == tensor.shape:  # the view covers the whole tensor
        return made
    return _torch.dtensor(_torch.local_of(made), made._spec, Part)
