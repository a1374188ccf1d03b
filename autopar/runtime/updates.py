"""Gives optimizers the tensors that their update needs: local tensors, whole ones, or DTensors.

PyTorch spends half a millisecond per parameter on a step of DTensors, ten times as long as on plain
tensors.  While an elementwise optimizer of torch steps, its groups and its state hold this rank's local
tensors instead of the DTensors.  They are swapped back after the step, so that nothing else of the
optimizer changes.  An optimizer that needs whole parameters steps on whole plain tensors
(`autopar.runtime.whole_step`).  Others step on the DTensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn
from weakref import WeakKeyDictionary, WeakMethod

import torch
from torch import nn, optim
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from autopar.errors import InputError
from autopar.request.coupling import (
    ELEMENTWISE,
    Coupling,
    Dependence,
    dependence_of,
    is_stand_in,
    wraps_another,
)
from autopar.runtime import _torch
from autopar.runtime.operators import _torch as dispatch
from autopar.runtime.replaced import refuse_optimizer
from autopar.runtime.whole_step import WholeStep

OURS = "_autopar_updates_locally"
State = dict[str, Any]


def update_locally(parameter: nn.Parameter, name: str) -> None:
    """Allow optimizers to step on a DTensor parameter's local tensor."""
    setattr(parameter, OURS, name)
    if not _Hooks.installed:
        _Hooks.installed = True
        dispatch.watch_data(_refuse_other_data)
        register_optimizer_step_pre_hook(_before)
        register_optimizer_step_post_hook(_after)


def _refuse_other_data(tensor: torch.Tensor, value: Any) -> None:
    name = getattr(tensor, OURS, None)
    if name is not None and _torch.storage_of(value) != _torch.storage_of(tensor):
        refuse_data(name)


def refuse_data(name: str) -> NoReturn:
    """Raise `InputError` for ``p.data = ...``, which does not change a DTensor's local tensor."""
    raise InputError(
        f"{name}.data was assigned (as torch.nn.utils.vector_to_parameters does), which does not "
        "change the parameter: the step computes with its shards. Write into it instead, under "
        "torch.no_grad(): parameter.copy_(values), with whole values."
    )


def check_before_steps(
    owner: nn.Module, parameters: Iterable[nn.Parameter], check: Callable[[], None]
) -> None:
    """Call `check`, a method of `owner` that may raise, before any optimizer steps on these.

    Parameters are stored by id, as torch cannot swap tensors with weak references.  `owner` keeps them
    alive.
    """
    _CHECKS[owner] = frozenset(map(id, parameters)), WeakMethod(check)


def _refuse_coupled(optimizer: optim.Optimizer, owner: nn.Module) -> None:
    """Raise `InputError` for an optimizer that needs all parameters if stages divide them."""
    if not getattr(owner, "IN_STAGES", False) or wraps_another(optimizer):
        return
    found = _dependence(optimizer)
    if found.coupling is Coupling.MODEL:
        kind = type(optimizer).__name__
        why = (
            f"its step could not be tried on small tensors ({found.failed}), so it may depend on them"
            if found.failed
            else "its update of one depends on the others, on their order, or on its own attributes"
        )
        raise InputError(
            f"{kind} may need all parameters at once: {why}. Each rank of a pipeline holds only "
            "those of its stages, and every stage would take a different step. Use an optimizer "
            "that treats each parameter separately, such as AdamW, or parallelize without "
            "stages."
        )


def _refuse_plain(optimizer: optim.Optimizer) -> None:
    """Raise `InputError` for unsharded states and gradients, by the first parameter with a gradient.

    Optimizers that step on whole tensors take whole states.
    """
    mine = (p for p in _parameters(optimizer) if hasattr(p, OURS) and p.dim())
    first = next((p for p in mine if p.grad is not None), None)
    if first is None:
        return
    if not isinstance(first.grad, DTensor):
        raise InputError(
            f"A gradient of shape {tuple(first.shape)} was set to a plain tensor, which the step "
            "cannot add to a part of a parameter. Change the existing one, as in "
            "p.grad.mul_(2), or p.grad.copy_(distribute_tensor(whole, p.device_mesh, "
            "p.placements)) with torch.distributed.tensor.distribute_tensor."
        )
    if _needs_whole(optimizer):
        return
    state = optimizer.state.get(first, {})
    if any(type(each) is torch.Tensor and each.dim() for each in state.values()):
        raise InputError(
            f"This {type(optimizer).__name__} has the state of an optimizer of one process: "
            "whole tensors for sharded parameters. In that process call "
            "autopar.runtime.checkpoint.save(path, model, optimizer), and in this one "
            "parallel.load(path, optimizer)."
        )


class _Hooks:
    installed = False


_CHECKS: WeakKeyDictionary[nn.Module, tuple[frozenset[int], WeakMethod[Callable[[], None]]]] = (
    WeakKeyDictionary()
)
"""By parallel model: the ids of its parameters, and the check that runs before a step on them."""


@dataclass(frozen=True, eq=False)
class _Swapped:
    """One parameter, the local tensor that replaces it, and its state before the step."""

    parameter: nn.Parameter
    local: torch.Tensor
    state: State | None


_SWAPPED: WeakKeyDictionary[optim.Optimizer, list[list[_Swapped]]] = WeakKeyDictionary()
"""By optimizer and group: the swapped parameters of a step that is running, or that failed."""
_DEPENDENCES: WeakKeyDictionary[optim.Optimizer, tuple[Any, Dependence]] = WeakKeyDictionary()
"""By optimizer: its settings that are no numbers, and how its parameters are coupled."""


def _dependence(optimizer: optim.Optimizer) -> Dependence:
    """Return how the optimizer's parameters are coupled; its class is tried once for equal settings."""
    settings = [
        sorted((k, v) for k, v in group.items() if isinstance(v, (bool, str)))
        + sorted({p.dim() for p in group["params"]})
        for group in optimizer.param_groups
    ]
    known = _DEPENDENCES.get(optimizer)
    if known is None or known[0] != settings:
        known = settings, dependence_of(optimizer)
        _DEPENDENCES[optimizer] = known
    return known[1]


def _needs_whole(optimizer: optim.Optimizer) -> bool:
    """Whether the optimizer steps on whole tensors of our parameters."""
    return (
        type(optimizer) not in ELEMENTWISE
        and any(hasattr(parameter, OURS) for parameter in _parameters(optimizer))
        and not wraps_another(optimizer)
        and _dependence(optimizer).coupling is not Coupling.ENTRY
    )


class _Hooked:
    """A step on whole tensors that begins, runs or has failed, and the hooks that surround it."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self._step: WholeStep | None = None
        self.remove = _torch.around_step(optimizer, self._begin, self._end)

    def _begin(self, optimizer: optim.Optimizer, args: Any, kwargs: Any) -> Any:
        self._step = WholeStep(optimizer, _dependence(optimizer), (args, kwargs))
        return self._step.begin()

    def _end(self, optimizer: optim.Optimizer, args: Any, kwargs: Any) -> None:
        assert self._step is not None
        self._step.end()


_HOOKED: WeakKeyDictionary[optim.Optimizer, _Hooked] = WeakKeyDictionary()
"""By optimizer: a step on whole tensors that is running, or that failed."""


def _before(optimizer: optim.Optimizer, args: Any, kwargs: Any) -> None:
    if is_stand_in(optimizer):
        return
    _put_back(optimizer)  # an earlier step that raised left its local tensors in the groups
    refuse_optimizer(type(optimizer).__name__, _parameters(optimizer))
    stepped = set(map(id, _parameters(optimizer)))
    for owner, (parameters, check) in list(_CHECKS.items()):
        if stepped & parameters and (found := check()) is not None:
            try:
                _refuse_coupled(optimizer, owner)
                _refuse_plain(optimizer)
                found()
                if (loop := getattr(owner, "_loop_record", None)) is not None:
                    loop.note_step(optimizer)
            except InputError as error:
                if (note := getattr(owner, "note_refused_update", None)) is not None:
                    note(error)  # ranks of other stages may step
                raise
    if _needs_whole(optimizer):
        _HOOKED[optimizer] = _Hooked(optimizer)
        return
    with _torch.untracked():
        if _recomputes(args, kwargs) or not _is_elementwise(optimizer):
            return
        _SWAPPED[optimizer] = [
            [_swapped(optimizer, parameter) for parameter in group["params"]]
            for group in optimizer.param_groups
        ]
    for group, swapped in zip(optimizer.param_groups, _SWAPPED[optimizer], strict=True):
        group["params"] = [each.local for each in swapped]


def _after(optimizer: optim.Optimizer, args: Any, kwargs: Any) -> None:
    _put_back(optimizer)


def _recomputes(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a closure runs within the step: its backward sets gradients of the DTensors."""
    return any(given is not None for given in (*args[1:], *kwargs.values()))


def _is_elementwise(optimizer: optim.Optimizer) -> bool:
    """Whether the optimizer may step on local tensors, and no other step hooks would see them."""
    return (
        type(optimizer) in ELEMENTWISE
        and not _torch.has_step_hooks(optimizer, (_before, _after))
        and not any(group.get("differentiable") for group in optimizer.param_groups)
        and all(_is_ours(optimizer, parameter) for parameter in _parameters(optimizer))
    )


def _parameters(optimizer: optim.Optimizer) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _is_ours(optimizer: optim.Optimizer, parameter: Any) -> bool:
    """Whether gradient and state are laid out like the parameter, which is not a scalar."""
    if not hasattr(parameter, OURS) or parameter.dim() == 0:
        return False
    beside = [parameter.grad, *optimizer.state.get(parameter, {}).values()]
    large = [value for value in beside if isinstance(value, torch.Tensor) and value.dim()]
    return all(isinstance(v, DTensor) and _torch.laid_out_alike(v, parameter) for v in large)


def _swapped(optimizer: optim.Optimizer, parameter: Any) -> _Swapped:
    local = _torch.local_of(parameter).detach()
    if parameter.grad is not None:
        local.grad = _torch.local_of(parameter.grad)
    state = optimizer.state.pop(parameter, None)
    if state is not None:
        optimizer.state[local] = {key: _local(value) for key, value in state.items()}
    return _Swapped(parameter, local, state)


def _local(value: Any) -> Any:
    return _torch.local_of(value) if isinstance(value, DTensor) else value


def _put_back(optimizer: optim.Optimizer) -> None:
    if (hooked := _HOOKED.pop(optimizer, None)) is not None:
        hooked.remove()
    groups = _SWAPPED.pop(optimizer, [])
    for group, swapped in zip(optimizer.param_groups, groups, strict=False):
        group["params"] = [each.parameter for each in swapped]
        for each in swapped:
            state = optimizer.state.pop(each.local, None)
            if state is not None:
                optimizer.state[each.parameter] = _distributed(each, state)


def _distributed(swapped: _Swapped, state: State) -> State:
    """Wrap states laid out like the parameter as DTensors again; reuse the earlier ones if unchanged."""
    before = swapped.state or {}
    for key, value in state.items():
        old = before.get(key)
        if isinstance(old, DTensor) and _torch.local_of(old) is value:
            state[key] = old
        elif isinstance(value, torch.Tensor) and value.dim() and value.shape == swapped.local.shape:
            assert isinstance(swapped.parameter, DTensor)
            state[key] = _torch.dtensor_like(value, swapped.parameter)
    return state
