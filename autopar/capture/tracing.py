"""Run the model once on fake tensors and record it: the first half of capture."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.func import functional_call

from autopar.capture import _torch
from autopar.capture.cached import forgotten
from autopar.capture.inputs import Call
from autopar.capture.known import KnownValues
from autopar.capture.loss import find_loss, no_loss, output_tensors
from autopar.capture.refuse import (
    explained,
    refuse_custom_backward,
    refuse_parameter_hooks,
    watchers,
)
from autopar.capture.state import AssignedBuffers, clean_attributes
from autopar.capture.told import transformers_told
from autopar.capture.where import Whereabouts
from autopar.graph import LeafKind


@dataclass(frozen=True)
class Trace:
    """An fx graph as torch recorded it, and what its placeholders and results stand for."""

    module: fx.GraphModule
    leaves: tuple[tuple[LeafKind, str], ...]
    """Kind and target of each placeholder, in order."""
    has_loss: bool
    """Whether the first result is the loss; then come `outputs`, then `assigned`."""
    outputs: tuple[str, ...]
    """Paths of the tensors that the model returned."""
    assigned: tuple[str, ...]
    """Buffers that forward replaced by assignment."""
    trainable: frozenset[str]
    """Parameters that get a gradient; none without `train`."""
    train: bool
    device: str
    returns: str
    """``module:class`` of what the model returned."""


def trace(
    model: nn.Module,
    call: Call,
    loss: Callable[..., Any] | None,
    train: bool,
    autocast: torch.dtype | None,
) -> Trace:
    """Record the model, and the loss behind it, on tensors without storage."""
    parameters = dict(model.named_parameters())
    buffers = dict(model.named_buffers())
    inputs = call.tensors
    mode = KnownValues()
    device = _device(parameters.values(), autocast)
    with mode, torch.device(device):
        fake_parameters = {
            key: _fake(p, train and p.requires_grad) for key, p in parameters.items()
        }
        fake_buffers = {key: _fake(buffer) for key, buffer in buffers.items()}
        fake_inputs = {key: _fake(tensor) for key, tensor in inputs.items()}
    ends: dict[str, Any] = {}
    where = Whereabouts(model, watchers())
    assigned = AssignedBuffers(model)

    def run(
        parameters: dict[str, torch.Tensor],
        buffers: dict[str, torch.Tensor],
        inputs: dict[str, torch.Tensor],
    ) -> list[torch.Tensor]:
        here = call.with_tensors(inputs)
        region = torch.autocast(device, autocast, enabled=autocast is not None)
        with where, assigned.watched(), torch.set_grad_enabled(train), region:
            weights = {**parameters, **buffers}
            output = functional_call(model, weights, here.args, dict(here.kwargs), tie_weights=True)
            found = find_loss(model, output, loss, here.targets)
            if found is None and train:
                raise no_loss(model, output, tuple(inputs))
            named = dict(output_tensors(output))
        ends.update(
            returns=f"{type(output).__module__}:{type(output).__qualname__}",
            has_loss=found is not None,
            outputs=tuple(named),
            assigned=tuple(assigned.found),
        )
        return [*([] if found is None else [found]), *named.values(), *assigned.found.values()]

    refuse_parameter_hooks(model)
    with (
        _modes(model, train),
        clean_attributes(model),
        forgotten(model),
        explained(model, where, inputs),
        refuse_custom_backward(where),
        transformers_told(),
        mode,
    ):
        module = _torch.trace(run, fake_parameters, fake_buffers, fake_inputs)
    leaves: list[tuple[LeafKind, str]] = [
        *(("parameter", key) for key in parameters),
        *(("buffer", key) for key in buffers),
        *(("input", key) for key in inputs),
    ]
    trainable = frozenset(key for key, p in parameters.items() if train and p.requires_grad)
    return Trace(
        module,
        tuple(leaves),
        ends["has_loss"],
        ends["outputs"],
        ends["assigned"],
        trainable,
        train,
        device,
        ends["returns"],
    )


def aliases(model: nn.Module) -> tuple[tuple[str, str], ...]:
    """(other name, the name that stands for it) of every tied parameter and buffer."""
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
    """Autocast has a list of operators per kind of device, so it is traced as the kind in use."""
    on_cuda = any(parameter.is_cuda for parameter in parameters)
    return "cuda" if autocast is not None and on_cuda else "cpu"


def _fake(tensor: torch.Tensor, requires_grad: bool = False) -> torch.Tensor:
    """A tensor of the same shape without memory, on the default device."""
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, requires_grad=requires_grad
    )


@contextlib.contextmanager
def _modes(model: nn.Module, train: bool) -> Iterator[None]:
    """`train`: every module as the user left it.  Otherwise: all in evaluation mode, and back."""
    before: Mapping[nn.Module, bool] = {module: module.training for module in model.modules()}
    try:
        if not train:
            model.eval()
        yield
    finally:
        for module, training in before.items():
            module.training = training
