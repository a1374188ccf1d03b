"""Runs an optimizer's own step on whole plain tensors, where its update needs whole parameters.

Each parameter is gathered with its gradient and its state, stepped on by a twin of the optimizer, and
this rank's parts are written back.  Every rank of the parameter's mesh computes the same.  If
parameters do not depend on each other, one at a time is whole.  Between steps, states of the
parameter's shape are sharded as the parameter is, and others replicated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn, optim
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from autopar.errors import InputError
from autopar.request.coupling import (
    LISTS,
    Coupling,
    Dependence,
    Group,
    own_attributes,
    raw_step,
    twin,
)
from autopar.runtime import _torch, agreement

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Part = Sequence[tuple[int, Sequence[Any]]]
"""Parameters that are whole at the same time, by the number of their group."""


@dataclass(eq=False)
class _Whole:
    """A parameter of the optimizer, and the plain tensor that the twin steps on."""

    parameter: Any
    tensor: Any = field(init=False)
    gradient: torch.Tensor | None = field(default=None, init=False)
    versions: tuple[int, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.parameter, DTensor):
            self.tensor = self.parameter
            return
        values = _whole(self.parameter).detach()
        self.tensor = nn.Parameter(values, self.parameter.requires_grad)
        marks = {k: v for k, v in vars(self.parameter).items() if not k.startswith("_")}
        vars(self.tensor).update(marks)
        self._read_gradient()

    def read(self) -> None:
        """Take the present values and the gradient of the parameter."""
        if self.tensor is self.parameter:
            return
        if not self.shares_memory:
            self.tensor.detach().copy_(_whole(self.parameter))
        self._read_gradient()

    def _read_gradient(self) -> None:
        given = self.parameter.grad
        self.gradient = None if given is None else _whole(given)
        self.tensor.grad = self.gradient
        self.versions = self._versions()

    def _versions(self) -> tuple[int, ...]:
        local = _torch.local_of(self.parameter)
        gradient = -1 if self.gradient is None else self.gradient._version
        return self.parameter._version, local._version, gradient

    @property
    def shares_memory(self) -> bool:
        """Whether the whole tensor is this rank's own, because the parameter is replicated."""
        own = _torch.local_of(self.parameter)
        return bool(own.data_ptr() == self.tensor.data_ptr() and own.shape == self.tensor.shape)

    @torch.no_grad()
    def write(self) -> None:
        """Write this rank's part of the values and of a changed gradient back."""
        if self.tensor is self.parameter:
            return
        now, shared = self._versions(), self.shares_memory
        if not shared and now[:2] != self.versions[:2]:
            raise InputError(
                f"A parameter of shape {tuple(self.parameter.shape)} was written to while the "
                "optimizer stepped on a whole copy of it, as by an optimizer within this one. "
                "Write only to the parameters in self.param_groups during step()."
            )
        if self.tensor.shape != self.parameter.shape:
            raise InputError(
                f"The optimizer gave a parameter of shape {tuple(self.parameter.shape)} the shape "
                f"{tuple(self.tensor.shape)}. Shapes are fixed after autopar.parallelize."
            )
        if not shared:
            _torch.local_of(self.parameter).copy_(_own(self.tensor.detach(), self.parameter))
        self._write_gradient(now[2])

    def _write_gradient(self, version: int) -> None:
        left, given = self.tensor.grad, self.parameter.grad
        if left is None:
            self.parameter.grad = None
        elif given is None:
            self.parameter.grad = _torch.dtensor_like(_own(left, self.parameter), self.parameter)
        elif left is not self.gradient or version != self.versions[2]:
            own = _own(left, given)
            if own.data_ptr() != _torch.local_of(given).data_ptr():
                _torch.local_of(given).copy_(own)


class WholeStep:
    """One step of an optimizer, part by part."""

    def __init__(
        self, optimizer: optim.Optimizer, dependence: Dependence, arguments: Arguments
    ) -> None:
        self._optimizer, self._arguments = optimizer, arguments
        self._closures = any(map(callable, (*arguments[0][1:], *arguments[1].values())))
        self._parts = list(_parts(optimizer, dependence, together=self._closures))
        self._settings = [dict(group) for group in optimizer.param_groups]
        self._attributes = own_attributes(optimizer)
        self._standing = self._attributes
        self._wholes: list[_Whole] = []
        self._twin = optimizer
        self._draws = dependence.coupling is Coupling.MODEL
        self._random = self._random_state()

    def begin(self) -> Arguments:
        """Step on all parts but the last, and return the arguments for the step on that."""
        for part in self._parts[:-1]:
            args, kwargs = self._enter(part)
            raw_step(self._optimizer)(*args, **kwargs)
            self._leave(part)
        return self._enter(self._parts[-1])

    def end(self) -> None:
        """Write the last part back."""
        self._leave(self._parts[-1])

    def _enter(self, part: Part) -> Arguments:
        groups: list[Group] = []
        self._wholes = []
        for number, parameters in part:
            wholes = [_Whole(parameter) for parameter in parameters]
            self._wholes += wholes
            settings = {k: v for k, v in self._settings[number].items() if k not in LISTS}
            names = self._names(number, parameters)
            groups.append({**settings, **names, "params": [whole.tensor for whole in wholes]})
        places = {id(whole.parameter): whole.tensor for whole in self._wholes}
        self._standing = {key: _replaced(value, places) for key, value in self._attributes.items()}
        self._twin = twin(self._optimizer, groups, self._standing)
        given = self._optimizer.state
        for whole in self._wholes:
            if whole.parameter in given:
                self._twin.state[whole.tensor] = _gathered(given[whole.parameter])
        own = _parameters(self._optimizer)
        self._twin.state.update((k, v) for k, v in given.items() if _key(k) not in own)
        args, kwargs = self._arguments
        rest = tuple(self._closure(each) for each in args[1:])
        return (self._twin, *rest), {key: self._closure(each) for key, each in kwargs.items()}

    def _names(self, number: int, parameters: Sequence[Any]) -> dict[str, list[str]]:
        group = self._settings[number]
        if "param_names" not in group:
            return {}
        chosen = set(map(id, parameters))
        named = zip(group["params"], group["param_names"], strict=True)
        return {"param_names": [name for p, name in named if id(p) in chosen]}

    def _closure(self, given: Any) -> Any:
        """Return a closure that computes with the twin's values, and gives it the gradients."""
        if not callable(given):
            return given

        def closure() -> Any:
            self._refuse_different_draws()
            for whole in self._wholes:
                whole.write()
            result = given()
            with torch.no_grad():
                for whole in self._wholes:
                    whole.read()
            self._random = self._random_state()
            return result

        return closure

    @torch.no_grad()
    def _leave(self, part: Part) -> None:
        self._refuse_different_draws()
        for whole in self._wholes:
            whole.write()
        for (number, _), left in zip(part, self._twin.param_groups, strict=True):
            group = self._optimizer.param_groups[number]
            group.update({key: left[key] for key in left.keys() - LISTS})
            for key in group.keys() - left.keys() - LISTS:
                del group[key]
        left_over = own_attributes(self._twin)
        for key, value in left_over.items():
            if value is not self._standing.get(key):
                setattr(self._optimizer, key, value)
        for key in self._attributes.keys() - left_over.keys():
            delattr(self._optimizer, key)
        self._keep_states()
        self._wholes, self._twin = [], self._optimizer

    def _keep_states(self) -> None:
        state = self._optimizer.state
        found = dict(self._twin.state)
        for whole in self._wholes:
            its = found.pop(whole.tensor, None)
            if its is None:
                state.pop(whole.parameter, None)
            else:
                state[whole.parameter] = _kept(its, whole.parameter, state.get(whole.parameter))
        state.update(found)

    def _random_state(self) -> bytes:
        """Return the state of the generators that a step may draw from; b"" if draws do not matter."""
        if not self._draws:
            return b""
        states = [torch.get_rng_state()]
        if torch.accelerator.is_available():
            states.append(torch.get_device_module().get_rng_state())
        return b"".join(state.numpy().tobytes() for state in states)

    def _refuse_different_draws(self) -> None:
        """Raise on all ranks if the step drew random numbers, and they differ between ranks."""
        now = self._random_state()
        if now != self._random:
            agreement.assert_same_on_all_ranks(
                f"the random state before a step of {type(self._optimizer).__name__}, which draws",
                hashlib.sha256(self._random).hexdigest()[:12],
                "Call torch.manual_seed with the same number on every rank.",
            )
            self._random = now


def _replaced(value: Any, places: Mapping[int, Any]) -> Any:
    """Return an attribute with whole tensors in place of parameters; itself if it holds none."""
    if id(value) in places:
        return places[id(value)]
    if type(value) in (list, tuple):
        made = [_replaced(each, places) for each in value]
        same = all(one is other for one, other in zip(made, value, strict=True))
        return value if same else type(value)(made)
    if type(value) is dict:
        pairs = [(_replaced(k, places), _replaced(v, places)) for k, v in value.items()]
        olds = value.items()
        same = all(a is c and b is d for (a, b), (c, d) in zip(pairs, olds, strict=True))
        return value if same else dict(pairs)
    return value


def _key(parameter: Any) -> Any:
    return id(parameter) if isinstance(parameter, torch.Tensor) else parameter


def _parameters(optimizer: optim.Optimizer) -> set[Any]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def _parts(optimizer: optim.Optimizer, dependence: Dependence, together: bool) -> Iterable[Part]:
    """Yield the parts that are stepped on one after the other; at least one."""
    groups = [list(group["params"]) for group in optimizer.param_groups]
    if together or dependence.coupling is Coupling.MODEL:
        yield list(enumerate(groups))
        return
    stepped = [
        (number, [parameter])
        for number, parameters in enumerate(groups)
        for parameter in parameters
        if parameter.grad is not None or not dependence.skips
    ]
    yield from ([each] for each in stepped)
    if not stepped:
        yield [(number, []) for number in range(len(groups))]


@torch.no_grad()
def _whole(tensor: DTensor) -> torch.Tensor:
    """Return the plain whole tensor; this rank's own if it is replicated.  Collective otherwise."""
    local = _torch.local_of(tensor)
    if all(isinstance(kind, Replicate) for kind in tensor.placements):
        return local
    plain = _torch.dtensor(local.detach(), tensor._spec)
    whole: torch.Tensor = DTensor.full_tensor(plain)
    return whole.detach()


def _own(whole: torch.Tensor, like: DTensor) -> torch.Tensor:
    """Return this rank's part, laid out like a DTensor, without communication."""
    plain = whole.detach()
    cut = distribute_tensor(plain, like.device_mesh, like.placements, src_data_rank=None)
    return _torch.local_of(cut)


def _gathered(value: Any) -> Any:
    """Return a state with whole plain tensors."""
    if isinstance(value, DTensor):
        return _whole(value)
    if type(value) in (list, tuple):
        return type(value)(_gathered(each) for each in value)
    if isinstance(value, Mapping):
        return {key: _gathered(each) for key, each in value.items()}
    return value


def _kept(value: Any, parameter: Any, before: Any) -> Any:
    """Return a state as it rests between steps; an earlier DTensor of the same layout is reused."""
    if not isinstance(parameter, DTensor):
        return value
    if type(value) in (list, tuple):
        same = type(before) is type(value) and len(before) == len(value)
        olds = before if same else [None] * len(value)
        pairs = zip(value, olds, strict=True)
        return type(value)(_kept(each, parameter, old) for each, old in pairs)
    if isinstance(value, dict):
        olds = before if isinstance(before, Mapping) else {}
        return {key: _kept(each, parameter, olds.get(key)) for key, each in value.items()}
    if not isinstance(value, torch.Tensor) or not value.dim():
        return value
    mesh = parameter.device_mesh
    follows = value.shape == parameter.shape
    places = parameter.placements if follows else (Replicate(),) * mesh.ndim
    if all(isinstance(kind, Replicate) for kind in places):
        if isinstance(before, DTensor) and _torch.local_of(before) is value:
            return before
        return _torch.dtensor(value.detach(), _torch.spec(mesh, places, value))
    own = _own(value, parameter)
    layout = (value.shape, value.dtype, places)
    if isinstance(before, DTensor) and layout == (before.shape, before.dtype, before.placements):
        _torch.local_of(before).copy_(own)
        return before
    return _torch.dtensor(own.clone(), _torch.spec(mesh, places, value))
