"""Splits the example inputs between the model and the loss, and names their tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autopar.errors import InputError
from autopar.request.batch import Batch, mapped, places_of, tensors_in, top
from autopar.request.opaque import described

ExampleInputs = tuple[Any, ...] | Mapping[str, Any]


@dataclass(frozen=True)
class Call:
    """The arguments of the model and of the loss. `tensors` are the tensors in them, by key."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    targets: Mapping[str, Any]

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors by key; see `autopar.request.nested`."""
        found: dict[str, torch.Tensor] = {}
        for key, value in self._places:
            found.update(tensors_in(value, key))
        return found

    @property
    def _places(self) -> list[tuple[str, Any]]:
        return [*places_of(self.args, self.kwargs).items(), *places_of((), self.targets).items()]

    def check(self) -> None:
        """Raise `InputError` if an object of an unsupported class contains tensors."""
        for key, value in self._places:
            Batch.of((), {key: value})

    def with_tensors(self, new: Mapping[str, torch.Tensor]) -> Call:
        """Return the same call with other tensors."""

        def filled(value: Any, key: str) -> Any:
            return new[key] if isinstance(value, torch.Tensor) else value

        return Call(
            tuple(mapped(value, str(i), filled) for i, value in enumerate(self.args)),
            {key: mapped(value, top(key), filled) for key, value in self.kwargs.items()},
            {key: mapped(value, top(key), filled) for key, value in self.targets.items()},
        )


def bind(model: nn.Module, inputs: ExampleInputs, loss: Callable[..., Any] | None) -> Call:
    """Split the example inputs between the model's forward and the loss.

    Raise `InputError` if an input fits neither.
    """
    if loss is not None and not callable(loss):
        raise InputError(
            f"loss is {loss!r}; pass a function of the model's output and, by name, of the other "
            "batch entries that it needs."
        )
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, Mapping):
        if not isinstance(inputs, (tuple, list)):
            raise InputError(
                f"example_inputs is a {type(inputs).__name__}; pass a dict of keyword "
                "arguments or a "
                "tuple of positional ones."
            )
        return _checked(Call(tuple(inputs), {}, {}), _Signature(model.forward), _Signature(loss))
    forward = _Signature(model.forward)
    target = _Signature(loss, skip=1) if loss is not None else _Signature(None)
    kwargs: dict[str, Any] = {}
    targets: dict[str, Any] = {}
    for key, value in inputs.items():
        to_model = key in forward.names or (forward.open and key not in target.names)
        to_loss = key in target.required or (not to_model and (key in target.names or target.open))
        if not (to_model or to_loss):
            raise InputError(
                f"The input {key!r} fits neither {type(model).__name__}.forward{forward} "
                "nor the "
                f"loss{target}; rename it, or give the loss a parameter {key!r}."
            )
        kwargs |= {key: value} if to_model else {}
        targets |= {key: value} if to_loss else {}
    return _checked(Call((), kwargs, targets), forward, target)


def _checked(call: Call, forward: _Signature, target: _Signature) -> Call:
    """Raise `InputError` if a tensor would become a constant: one inside an object, or a default."""
    call.check()
    given = {*call.kwargs, *call.targets, *list(forward.defaults)[: len(call.args)]}
    for name, value in (*forward.defaults.items(), *target.defaults.items()):
        if name not in given and tensors_in(value, name):
            raise InputError(
                f"The default of {name!r} holds a tensor, which would be frozen at its present "
                f"values. Register it as a buffer of the model, or pass {name!r} with the batch."
            )
        if name not in given:
            described(value, name)
    return call


class _Signature:
    """The parameter names of a callable, the required ones, and whether it takes any other name."""

    def __init__(self, function: Callable[..., Any] | None, skip: int = 0) -> None:
        self.names: set[str] = set()
        self.required: set[str] = set()
        self.open = False
        self.defaults: dict[str, Any] = {}
        if function is None:
            self.text = " (none was given)"
            return
        called = function.forward if isinstance(function, nn.Module) else function
        try:
            signature = inspect.signature(called)
        except ValueError:  # functions implemented in C, such as `torch.sum`, may have no signature
            self.text = " (built in, it has no names)"
            return
        self.text = str(signature)
        for parameter in list(signature.parameters.values())[skip:]:
            if parameter.kind is parameter.VAR_KEYWORD:
                self.open = True
            elif parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                self.names.add(parameter.name)
                if parameter.default is parameter.empty:
                    self.required.add(parameter.name)
                else:
                    self.defaults[parameter.name] = parameter.default

    def __str__(self) -> str:
        return self.text
