"""A DTensor that remembers the parameter of a stage it was computed from.

A rank of a pipeline holds the parameters of its stages alone.  Numbers of one parameter are right on
it; a sum, a maximum or a decision over several would cover its stages only, and differ between ranks.
Such numbers are refused, as tensors and, in `loops`, as Python numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from autopar.errors import InputError
from autopar.runtime import _torch
from autopar.runtime.closed import Elsewhere
from autopar.runtime.pipeline.loops import OVER_STAGES, OWN, Loops, optimizer_that_steps
from autopar.runtime.sharded_parameter import ShardedParameter

CLIP = (
    "Call parallel.clip_grad_norm_(max_norm) instead of torch.nn.utils.clip_grad_norm_: it clips by the "
    "whole model's norm and returns it (float('inf') clips nothing)."
)
COPIES: frozenset[Any] = frozenset({
    torch.Tensor.clone, torch.clone, torch.zeros_like, torch.empty_like, torch.ones_like,
    torch.full_like, torch.Tensor.new_zeros, torch.Tensor.new_empty, torch.Tensor.new_ones,
    torch.Tensor.new_full,
})  # fmt: skip
"""Functions with which optimizers create their states, which are plain DTensors."""
JOINS = frozenset({"cat", "concat", "concatenate", "stack", "hstack", "vstack"})
SUMS = JOINS | {
    "add", "add_", "__add__", "__radd__", "__iadd__", "sub", "sub_", "__sub__", "__rsub__", "neg",
    "sum", "to", "float", "double",
}  # fmt: skip
SCALES = frozenset({"mul", "__mul__", "__rmul__", "div", "__truediv__", "true_divide"})
"""`SUMS` and, with another factor alone, `SCALES`: names of functions that keep a sum's terms apart."""
EQUAL = (torch.equal, torch.Tensor.equal)


@dataclass(frozen=True)
class Origin:
    """What a tensor was computed from.

    `parameters`: one name, or several where values of several parameters were joined.  `is_number`:
    whether it is a scalar that was computed from a larger tensor.
    """

    parameters: frozenset[str]
    loops: Loops
    of_gradient: bool = False
    is_number: bool = False


class StageTensor(DTensor):
    """A parameter of a stage, its gradient, or what was computed from them."""

    __slots__ = ()
    origin: Origin

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if Elsewhere in types:
            return NotImplemented  # it refuses, by name
        if func in EQUAL:
            _first(args).read(is_decision=True)
        made = _torch.plain_function(func, types, args, kwargs or {})
        if isinstance(made, DTensor):
            return _with_origin(made, func, args)
        if type(made) in (list, tuple) and any(isinstance(each, DTensor) for each in made):
            return type(made)(_each_with_origin(made, func, args))
        return made

    def read(self, *, is_decision: bool = False) -> None:
        """Raise `InputError` if this tensor's value would be one of several parameters."""
        if len(self.origin.parameters) > 1 and not self.origin.loops.apart:
            raise InputError(_combined(self.origin))
        if not (is_decision and optimizer_that_steps() is not None):
            self.origin.loops.note(min(self.origin.parameters))

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        """Return a plain DTensor; copies are not tracked."""
        made = self._plain(_torch.local_of(self).detach().clone())
        if self.grad is not None:
            made.grad = self.grad.clone()
        memo[id(self)] = made
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Write a plain DTensor, which any process can read."""
        return self._plain(_torch.local_of(self).detach()).__reduce_ex__(protocol)

    def _plain(self, local: torch.Tensor) -> torch.Tensor:
        made = _torch.dtensor(local, self._spec)
        if isinstance(self, torch.nn.Parameter):
            return torch.nn.Parameter(made, requires_grad=self.requires_grad)
        return made.requires_grad_(self.requires_grad)


@dataclass(frozen=True)
class Marks:
    """Marks the parameters and gradients of one pipeline's stages on this rank."""

    loops: Loops

    def on(self, slot: ShardedParameter) -> ShardedParameter:
        """Mark a parameter, and its gradients as they are made; return its slot."""
        origin = Origin(frozenset({slot.name}), self.loops)
        assert isinstance(slot.parameter, DTensor)
        _marked(slot.parameter, origin)
        slot.marked = partial(_marked, origin=replace(origin, of_gradient=True))
        return slot


def _marked(tensor: DTensor, origin: Origin) -> DTensor:
    tensor.__class__ = StageTensor
    assert isinstance(tensor, StageTensor)
    tensor.origin = origin
    return tensor


def _with_origin(made: DTensor, func: Callable[..., Any], args: tuple[Any, ...]) -> DTensor:
    """Mark a result; raise `InputError` if it is a number of several parameters of these stages."""
    given = list(_tensors(args))
    if func == _torch.GRADIENT_OF:
        if type(made) is DTensor:
            _marked(made, replace(given[0].origin, of_gradient=True))
        return made
    if not given:
        return made
    if func in _torch.NORMS and any(each.origin.of_gradient for each in given):
        _refuse_norm(given[0].origin)
    origin = _joined(made, func, args)
    return _marked(made, origin) if type(made) is DTensor and func not in COPIES else made


def _each_with_origin(
    made: Any, func: Callable[..., Any], args: tuple[Any, ...]
) -> Iterator[torch.Tensor]:
    """Mark results of one function: those of a list by the tensors of the list they come from."""
    if func in _torch.NORMS_OF_MANY:
        _refuse_norm(_first(args).origin)
    lists = [arg for arg in args if isinstance(arg, list | tuple) and len(arg) == len(made)]
    for place, each in enumerate(made):
        own = tuple(arg[place] if any(arg is one for one in lists) else arg for arg in args)
        yield _with_origin(each, func, own) if isinstance(each, DTensor) else each


def _joined(made: DTensor, func: Callable[..., Any], args: tuple[Any, ...]) -> Origin:
    """Return the origin of a result; raise `InputError` if it must not exist."""
    given = list(_tensors(args))
    names = frozenset().union(*(each.origin.parameters for each in given))
    numbers = [each.origin for each in given if each.origin.is_number]
    of_numbers = frozenset().union(*(origin.parameters for origin in numbers))
    name = getattr(func, "__name__", "")
    shrinks = made._spec.ndim == 0 and any(each._spec.ndim > 0 for each in given)
    joins = name in JOINS or len(of_numbers) > 1 or any(len(e.origin.parameters) > 1 for e in given)
    origin = Origin(
        names if joins else frozenset({", ".join(sorted(names))}),
        given[0].origin.loops,
        any(each.origin.of_gradient for each in given),
        made._spec.ndim == 0 and (shrinks or bool(numbers)),
    )
    is_of_several = len(origin.parameters) > 1 and (len(of_numbers) > 1 or origin.is_number)
    is_joined_alone = bool(numbers) and name in JOINS and len(given) == 1  # of a stage's only one
    if origin.loops.apart or not (is_of_several or is_joined_alone):
        return origin
    if not made.requires_grad:
        raise InputError(_combined(origin))
    scales = name in SCALES and len(given) == 1 and given[0] is args[0]
    if name not in SUMS and not scales:
        raise InputError(
            f"{name} of a sum over several parameters ({_listed(origin)}) would have the wrong "
            "gradients: this rank's sum lacks the parameters of other stages. A penalty over the "
            "parameters of a pipeline has to be a sum with one term for each parameter."
        )
    return origin


def _refuse_norm(origin: Origin) -> None:
    if not origin.loops.apart:
        raise InputError(
            "This norm covers only the gradients of this rank's stages; those of other "
            f"stages are on other ranks. {CLIP}"
        )


def _combined(origin: Origin) -> str:
    clip = f" {CLIP}" if origin.of_gradient else ""
    return (
        f"Values of several parameters ({_listed(origin)}) are combined here: that covers only "
        f"this rank's stages, and those of other stages are on other ranks. {OVER_STAGES} {OWN}{clip}"
    )


def _listed(origin: Origin) -> str:
    names = sorted(origin.parameters)
    return ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")


def _tensors(args: tuple[Any, ...]) -> Iterator[StageTensor]:
    """Yield the marked tensors among arguments, and in lists and tuples of them."""
    for arg in args:
        every = arg if isinstance(arg, list | tuple) else [arg]
        yield from (each for each in every if isinstance(each, StageTensor))


def _first(args: tuple[Any, ...]) -> StageTensor:
    return next(_tensors(args))
