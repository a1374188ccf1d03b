"""Runs the model once on fake tensors and records it. This is the first half of capture."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.func import functional_call

from autopar.capture import _torch
from autopar.capture.cached import forgotten
from autopar.capture.checks import distributions_unchecked, tensor_checks_passed
from autopar.capture.differentiated import Differentiated, Differentiates, refuse_gradients
from autopar.capture.functions import functions_as_operators
from autopar.capture.hooks import refuse_observers
from autopar.capture.inputs import Call
from autopar.capture.known import KnownValues, likely, suppose
from autopar.capture.loss import find_loss, no_loss, output_tensors
from autopar.capture.nested_encoder import nested_encoders_refused
from autopar.capture.python_state import undone
from autopar.capture.refuse import explained, watchers
from autopar.capture.remembered import Forgotten, Remembered
from autopar.capture.state import AssignedBuffers, ByProduct, clean_attributes
from autopar.capture.transformers_patches import synchronised_norms, transformers_told
from autopar.capture.where import Watcher, Whereabouts
from autopar.ir.graph import LeafKind
from autopar.request.meta import refuse_parameter_hooks

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Ended:
    """What the results of a run stand for."""

    has_loss: bool
    """Whether the first result is the loss; `outputs` and then `assigned` follow."""
    outputs: tuple[str, ...]
    """Paths of the tensors that the model returned."""
    assigned: tuple[str, ...]
    """Buffers that forward replaced by assignment."""
    returns: str
    """``module:class`` of what the model returned."""


@dataclass(frozen=True)
class Trace:
    """An fx graph as torch recorded it, and what its placeholders and results stand for."""

    module: fx.GraphModule
    leaves: tuple[tuple[LeafKind, str], ...]
    """Kind and target of each placeholder, in order."""
    results: Ended
    trainable: frozenset[str]
    """Parameters that get a gradient; none without `train`."""
    train: bool
    device: str
    originals: Mapping[int, int] = field(default_factory=dict)
    """Position among the leaves of the user's own parameters and buffers, by id."""
    left: tuple[ByProduct, ...] = ()
    """Attributes that forward filled; they are empty again."""


@dataclass(frozen=True)
class Demands:
    """Requirements of a trace: gradients, the modules' present modes, a loss."""

    train: bool
    keeps_modes: bool
    needs_loss: bool


def trace(
    model: nn.Module,
    call: Call,
    loss: Callable[..., Any] | None,
    demands: Demands,
    autocast: torch.dtype | None,
) -> Trace:
    """Record the model, followed by the loss, on tensors without storage."""
    try:
        with contextlib.suppress(Forgotten):
            return _traced(model, call, loss, demands, autocast, Remembered())
        return _traced(model, call, loss, demands, autocast, None)
    except Differentiates:
        return _traced(model, call, loss, demands, autocast, Differentiated())


def _traced(
    model: nn.Module,
    call: Call,
    loss: Callable[..., Any] | None,
    demands: Demands,
    autocast: torch.dtype | None,
    answers: Remembered | Differentiated | None,
) -> Trace:
    train = demands.train
    parameters = dict(model.named_parameters())
    buffers = dict(model.named_buffers())
    trainable = frozenset(key for key, p in parameters.items() if train and p.requires_grad)
    device = _device(parameters.values(), autocast)
    mode = KnownValues()
    with mode, torch.device(device):
        fakes = (
            {key: _fake(p, key in trainable) for key, p in parameters.items()},
            {key: _fake(buffer) for key, buffer in buffers.items()},
            {key: _fake(tensor, tensor.requires_grad) for key, tensor in call.tensors.items()},
        )
    for key, buffer in buffers.items():
        suppose(fakes[1][key], likely(buffer))
    asked: Mapping[Any, Watcher] = {} if answers is None else answers.watchers()
    taken = {} if isinstance(answers, Differentiated) else refuse_gradients()
    where = Whereabouts(model, {**watchers(), **taken, **asked})
    run = _Run(
        model, call, loss, demands, torch.autocast(device, autocast, autocast is not None), where
    )
    refuse_parameter_hooks(model)
    with (
        undone(model, loss),
        _modes(model, demands.keeps_modes),
        refuse_observers(model),
        clean_attributes(model) as left,
        forgotten(model),
        explained(model, where, call.tensors),
        functions_as_operators(where),
        transformers_told(),
        distributions_unchecked(),
        tensor_checks_passed(),
        _torch.uncompiled(),
        synchronised_norms(),
        nested_encoders_refused(train),
        contextlib.nullcontext() if answers is None else answers.answering(),
        mode,
    ):
        # Torch would count the `self` of a bound method among the arguments.
        module = _torch.trace(lambda *tensors: run.on(*tensors), *fakes)
    assert run.ended is not None
    leaves: list[tuple[LeafKind, str]] = [
        *(("parameter", key) for key in parameters),
        *(("buffer", key) for key in buffers),
        *(("input", key) for key in call.tensors),
    ]
    tensors = (*parameters.values(), *buffers.values())
    originals = {id(tensor): place for place, tensor in enumerate(tensors)}
    return Trace(module, tuple(leaves), run.ended, trainable, train, device, originals, tuple(left))


@dataclass
class _Run:
    """The model's call as a function of tensors only; `ended` describes its results."""

    model: nn.Module
    call: Call
    loss: Callable[..., Any] | None
    demands: Demands
    region: torch.autocast
    where: Whereabouts
    ended: Ended | None = None

    def on(self, parameters: Tensors, buffers: Tensors, inputs: Tensors) -> list[torch.Tensor]:
        """Return the loss, if there is one, the outputs, and the buffers that were assigned."""
        here, assigned = self.call.with_tensors(inputs), AssignedBuffers(self.model)
        with (
            self.where,
            assigned.watched(),
            torch.set_grad_enabled(self.demands.train),
            self.region,
        ):
            weights = {**parameters, **buffers}
            output = functional_call(
                self.model, weights, here.args, dict(here.kwargs), tie_weights=True
            )
            found = find_loss(self.model, output, self.loss, here.targets)
            if found is None and self.demands.needs_loss:
                raise no_loss(self.model, output, tuple(inputs))
            named = dict(output_tensors(output))
        returns = f"{type(output).__module__}:{type(output).__qualname__}"
        self.ended = Ended(found is not None, tuple(named), tuple(assigned.found), returns)
        return [*([] if found is None else [found]), *named.values(), *assigned.found.values()]


def aliases(model: nn.Module) -> tuple[tuple[str, str], ...]:
    """Return (other name, name in the graph) of every tied parameter and buffer."""
    found: list[tuple[str, str]] = []
    pairs: tuple[Callable[..., Iterator[tuple[str, torch.Tensor]]], ...] = (
        model.named_parameters,
        model.named_buffers,
    )
    for named in pairs:
        first: dict[int, str] = {}
        for name, tensor in named(remove_duplicate=False):
            if first.setdefault(id(tensor), name) != name:
                found.append((name, first[id(tensor)]))
    return tuple(found)


def _device(parameters: Iterable[torch.Tensor], autocast: torch.dtype | None) -> str:
    """Return the kind of device to trace as: the one in use, since autocast's operators depend on it."""
    on_cuda = any(parameter.is_cuda for parameter in parameters)
    return "cuda" if autocast is not None and on_cuda else "cpu"


def _fake(tensor: torch.Tensor, requires_grad: bool = False) -> torch.Tensor:
    """Return a tensor of the same shape and strides without memory, on the default device."""
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, requires_grad=requires_grad
    )


@contextlib.contextmanager
def _modes(model: nn.Module, kept: bool) -> Iterator[None]:
    """Within the context, put all modules in evaluation mode, unless their modes are `kept`."""
    before: Mapping[nn.Module, bool] = {module: module.training for module in model.modules()}
    try:
        if not kept:
            model.eval()
        yield
    finally:
        for module, training in before.items():
            module.training = training
