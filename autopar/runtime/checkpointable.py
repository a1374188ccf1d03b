"""Base class of the modules that `autopar.parallelize` returns: state dicts, checkpoints, attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from autopar.errors import InputError
from autopar.request.weights import WeightsSource
from autopar.runtime import _torch, agreement, checkpoint
from autopar.runtime.attributes import Attributes
from autopar.runtime.closed import no_copy, no_empty, refuse_whole_model, refuse_wrapper
from autopar.runtime.draws import draw_whole
from autopar.runtime.extra import (
    KEY,
    check_extra_states,
    has_extra_state,
    set_extra_states,
    without_extra_states,
)
from autopar.runtime.holders import holders, like_a_sequence
from autopar.runtime.inference import outside_inference
from autopar.runtime.parameter_reduction import (
    Number,
    Reduction,
    check_reduction,
    numbers_of,
    reduced,
)
from autopar.runtime.pipeline.refusals import refused_by_all
from autopar.runtime.random import Seeds
from autopar.runtime.replaced import record
from autopar.runtime.scaler import GradScaler
from autopar.runtime.sharded_parameter import ShardedParameter, refuse_other_data
from autopar.runtime.weights.fill import load
from autopar.runtime.weights.match import (
    FOR_LOAD_STATE_DICT,
    FOR_LOAD_WEIGHTS,
    Advice,
    Dialect,
    Match,
    refuse_leftovers,
)
from autopar.runtime.weights.source import Source, opened, refuse_different
from autopar.runtime.weights.target import Target
from autopar.runtime.world import OwnGroup


class CheckpointableModule(nn.Module):
    """A module whose parameters are DTensors under the user's names; each rank holds its own shards.

    Subclasses set `seeds`, `_targets` (by name: tensors that can be filled), `_persistent` (names in a
    state dict) and `_dialect` (other names of the same tensors).
    """

    seeds: Seeds
    _slots: Sequence[ShardedParameter]
    _targets: Mapping[str, Target]
    _persistent: Set[str]
    _dialect: Dialect
    _device: str
    _root: nn.Module
    """The user's model as a tree of modules that hold tensors; its children are also this module's."""
    _attributes: Attributes
    _own_group: OwnGroup
    device_mesh: DeviceMesh
    IN_STAGES: ClassVar[bool] = False
    """Whether ranks of other pipeline stages hold other parameters."""

    def _hold(self, model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over the module tree of `model`, with these tensors under its names."""
        root = holders(model, tensors, self._device)
        own = vars(self)
        own["_own_group"] = OwnGroup()
        own["_parameters"], own["_buffers"] = root._parameters, root._buffers
        own["_modules"] = root._modules
        own["_non_persistent_buffers_set"] = root._non_persistent_buffers_set
        own["_attributes"] = Attributes(root)
        own["_root"] = root
        record(model, self)
        is_stage = self.IN_STAGES and self.device_mesh.size() < dist.get_world_size()
        draw_whole(self.device_mesh, is_stage=is_stage)
        self.__class__ = like_a_sequence(type(self), type(model))

    def _begin_call(self, call: str, *, meet: bool = False) -> None:
        """Begin a call of this module that all ranks make; see `autopar.runtime.agreement.begin`."""
        self._own_group.refuse_destroyed()
        agreement.begin(call, meet=meet)

    @property
    def training(self) -> bool:
        """Train or eval mode of the model itself; every submodule has its own."""
        root = vars(self).get("_root")
        return True if root is None else root.training

    @training.setter
    def training(self, mode: bool) -> None:
        root = vars(self).get("_root")
        if root is not None:
            root.training = mode

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all modules, through the model's own `train` if it has one."""
        self._root.train(mode)
        return self

    def refuse_beside_forward(self) -> None:
        """Raise `InputError` for hooks or a replaced forward, before a step that would skip them."""
        found = "a forward that was set on it" if "forward" in vars(self) else ""
        if found or _torch.has_own_hooks(self):
            raise InputError(
                f"The parallel model has {found or 'hooks'}, which train_step does not call "
                "here: it runs the microbatches itself. Do the same work before and after "
                "train_step; without stages and with microbatches=1 it is called."
            )

    def __getattr__(self, name: str) -> Any:
        """Look other names up on the user's model: attributes, and methods that need no forward."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            root = vars(self).get("_root")
            if name == "module" and not hasattr(root, name):
                raise AttributeError(
                    "A parallel model has no .module: it is not a wrapper. Parameters, submodules and "
                    "attributes have the user's names on it: parallel.head, not parallel.module.head."
                ) from None
            if root is None:
                raise
            refuse_wrapper(name)
            refuse_whole_model(name, root)
            return getattr(root, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set attributes of the user's model on that model, where the next step checks them."""
        root = vars(self).get("_root")
        unknown = root is not None and name not in vars(root)
        is_own = (
            root is None
            or isinstance(value, nn.Module)
            or hasattr(type(self), name)
            or (unknown and (name.startswith("_") or name in vars(self)))
        )
        if is_own:
            super().__setattr__(name, value)
        else:
            setattr(root, name, value)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        self._root._apply(fn, recurse)
        return self

    def to_empty(self, **_: Any) -> NoReturn:
        """Raise `InputError`, whose message has the alternative."""
        no_empty("")()
        raise AssertionError

    def __deepcopy__(self, memo: Any) -> NoReturn:
        no_copy("")()
        raise AssertionError

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        no_copy("")()
        raise AssertionError

    def get_submodule(self, target: str) -> nn.Module:
        """Return a submodule by its dotted name, even if this class has an attribute of that name."""
        here: nn.Module = self
        for part in filter(None, target.split(".")):
            found = here._modules.get(part)
            if found is None:
                raise AttributeError(f"{type(here).__name__} has no submodule {part!r} ({target}).")
            here = found
        return here

    def get_buffer(self, target: str) -> torch.Tensor:
        """Return a buffer by its dotted name, likewise."""
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path)._buffers.get(name)
        if found is None:
            raise AttributeError(f"The model has no buffer {target!r}.")
        return found

    def get_parameter(self, target: str) -> nn.Parameter:
        """Return a parameter by its dotted name, likewise."""
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path)._parameters.get(name)
        if found is None:
            raise AttributeError(f"The model has no parameter {target!r}.")
        return found

    def grad_scaler(self, **settings: Any) -> GradScaler:
        """Return a `torch.amp.GradScaler`, made with these arguments, that finds overflows on any rank.

        ``scaler.scale(loss).backward()``, then perhaps ``scaler.unscale_(optimizer)`` and
        `clip_grad_norm_`, then ``scaler.step(optimizer)`` and ``scaler.update()``.
        """
        return GradScaler(self._device, **settings)

    def reduce_over_parameters(
        self, function: Callable[[torch.Tensor], Any], op: Reduction = "sum"
    ) -> Number:
        """Call a function with each parameter of the model, and reduce its results, equal on all ranks.

        The function returns one number (a scalar tensor or Python's), or None to leave a parameter out;
        ``parameter.grad`` is the gradient.  `op`: "sum", "max", "min", "any" or "all".  With pipeline
        stages each rank calls it with the parameters of its own; tied parameters count once.

        Raises `InputError` for another `op`, for results that are no numbers, and on all ranks if the
        function raises on one stage.
        """
        check_reduction(op)
        self._begin_call("reduce_over_parameters", meet=True)
        return reduced(self._numbers_of(function), op)

    def _numbers_of(self, function: Callable[[torch.Tensor], Any]) -> list[Number]:
        return numbers_of(function, self.named_parameters())

    @outside_inference
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the tensors that this rank holds, by the user's names."""
        refuse_other_data(self._slots)
        made = super().state_dict(*args, **kwargs)
        if has_extra_state(self._root):  # super() visits this module, not the root
            made[kwargs.get("prefix", "") + KEY] = self._root.get_extra_state()
        return made

    @outside_inference
    def save(
        self,
        path: str | Path,
        optimizer: torch.optim.Optimizer | None = None,
        step: int = 0,
        *,
        scheduler: Any = None,
        scaler: Any = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a checkpoint directory that any mesh, preset or plain PyTorch model can read.

        It holds model, optimizer, step and random state, and each rank's `scheduler`, `scaler` and
        `extra`, which have a ``state_dict()`` or are data.  An interrupted write keeps the old one.
        """
        self._begin_call("save", meet=True)
        checkpoint.save(
            path, self, optimizer, step, scheduler=scheduler, scaler=scaler, extra=extra
        )

    @outside_inference
    def load(
        self,
        path: str | Path,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        scheduler: Any = None,
        scaler: Any = None,
        extra: dict[str, Any] | None = None,
    ) -> int:
        """Read a checkpoint that was written on any mesh; return its step.

        Values of `extra` that have a ``load_state_dict`` are loaded, others replaced in the dict.
        If anything is damaged or does not fit, every rank raises and nothing is changed.
        """
        self._begin_call("load", meet=True)
        return checkpoint.load(
            path, self, optimizer, scheduler=scheduler, scaler=scaler, extra=extra
        )

    @outside_inference
    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load this module's own state dict, or a plain model's, whose full tensors are sharded.

        With pipeline stages, its own state dict is that of this rank's stages.
        """
        if assign:
            raise InputError(
                "assign=True would replace the shards that the step computes with. Leave it out: "
                "values are copied into them."
            )
        if strict:
            check_extra_states(self._root, state_dict)
        tensors = without_extra_states(self._root, state_dict)
        advice = FOR_LOAD_STATE_DICT if strict else None
        match = self._load(opened(tensors), advice, by_stage=self.IN_STAGES)
        set_extra_states(self._root, state_dict)
        return _torch.IncompatibleKeys(list(match.missing), list(match.unexpected))

    @outside_inference
    def load_weights(self, weights: WeightsSource) -> None:
        """Read anything that `autopar.parallelize` takes as weights=; each rank reads its own slices."""
        self._load(opened(weights), FOR_LOAD_WEIGHTS)

    def _load(self, source: Source, strictly: Advice | None, *, by_stage: bool = False) -> Match:
        """Fill the tensors that the source has.

        `strictly`: the advice in the error for leftover names; None accepts them.  `by_stage`: a source
        of exactly this rank's tensors is complete.
        """
        self._begin_call("a load of weights", meet=True)
        own = without_extra_states(self._root, self.state_dict()).keys() if self.IN_STAGES else None
        names = self._persistent
        if own is not None and by_stage and own == source.shapes.keys():
            names = names & own
        wanted = {name: t for name, t in self._targets.items() if name in names}
        with refused_by_all():
            match = self._dialect.match(wanted, source)
            if strictly is not None:
                refuse_leftovers(source, match.missing, match.unexpected, strictly)
        refuse_different(source, is_own=own is not None and source.shapes.keys() <= own)
        load(source, self._targets, match)
        return match


def refuse_without_gradients(module: CheckpointableModule | None = None) -> None:
    """Raise `InputError`, on all ranks, before a training step while gradients are off.

    `module`: a model whose own forward the step does not call; its hooks are refused too.
    """
    if module is not None:
        module.refuse_beside_forward()
    if not torch.is_grad_enabled():
        raise InputError(
            "train_step computes gradients, which are off here (torch.no_grad, inference_mode). "
            "Call it outside; to evaluate, call the model itself."
        )
