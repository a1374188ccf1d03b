"""What every module that `autopar.parallelize` returns can do with its weights, whatever computes."""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autopar.errors import InputError
from autopar.runtime import _torch, agreement, checkpoint
from autopar.runtime.random import Seeds
from autopar.runtime.scaler import GradScaler
from autopar.runtime.weights.fill import load
from autopar.runtime.weights.match import (
    FOR_LOAD_STATE_DICT,
    FOR_LOAD_WEIGHTS,
    Advice,
    Dialect,
    Match,
    refuse_leftovers,
)
from autopar.runtime.weights.source import Source, Weights, opened
from autopar.runtime.weights.target import Target


class Held(nn.Module):
    """Parameters are DTensors under the user's names; each rank holds its shards of its own.

    `seeds`, `_targets` (by name: what can be filled), `_persistent` (names in a state dict) and
    `_dialect` (other names of the same tensors) are set by who derives from it.
    """

    seeds: Seeds
    _targets: Mapping[str, Target]
    _persistent: Set[str]
    _dialect: Dialect
    _device: str

    def get_submodule(self, target: str) -> nn.Module:
        """A submodule by its dotted name, also where this class has an attribute of that name."""
        here: nn.Module = self
        for part in filter(None, target.split(".")):
            found = here._modules.get(part)
            if found is None:
                raise AttributeError(f"{type(here).__name__} has no submodule {part!r} ({target}).")
            here = found
        return here

    def get_buffer(self, target: str) -> torch.Tensor:
        """A buffer by its dotted name, likewise."""
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path)._buffers.get(name)
        if found is None:
            raise AttributeError(f"There is no buffer {target!r}.")
        return found

    def get_parameter(self, target: str) -> nn.Parameter:
        """A parameter by its dotted name, likewise."""
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path)._parameters.get(name)
        if found is None:
            raise AttributeError(f"There is no parameter {target!r}.")
        return found

    def grad_scaler(self, **settings: Any) -> GradScaler:
        """A `torch.amp.GradScaler`, with its arguments, that finds overflows on all ranks together.

        ``scaler.scale(loss).backward()``, then perhaps ``scaler.unscale_(optimizer)`` and
        `clip_grad_norm_`, then ``scaler.step(optimizer)`` and ``scaler.update()``.
        """
        return GradScaler(self._device, **settings)

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

        It holds model, optimizer, step and random state, and of each rank `scheduler`, `scaler` and
        `extra`, which have a ``state_dict()`` or are data; an interrupted write leaves the old one.
        """
        agreement.begin("save", meet=True)
        checkpoint.save(
            path, self, optimizer, step, scheduler=scheduler, scaler=scaler, extra=extra
        )

    def load(
        self,
        path: str | Path,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        scheduler: Any = None,
        scaler: Any = None,
        extra: dict[str, Any] | None = None,
    ) -> int:
        """Read a checkpoint that was written on any mesh; give its step.

        Values of `extra` that have a ``load_state_dict`` are loaded, others replaced in the dict.
        Where anything is damaged or does not fit, every rank raises and nothing is changed.
        """
        agreement.begin("load", meet=True)
        return checkpoint.load(
            path, self, optimizer, scheduler=scheduler, scaler=scaler, extra=extra
        )

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load this module's own state, or a plain model's: whole tensors are cut on the way."""
        if assign:
            raise InputError(
                "assign=True would replace the shards that the step computes with. Leave it out: "
                "values are copied into them."
            )
        match = self._load(opened(state_dict), FOR_LOAD_STATE_DICT if strict else None)
        return _torch.IncompatibleKeys(list(match.missing), list(match.unexpected))

    def load_weights(self, weights: Weights) -> None:
        """Read what `autopar.parallelize` takes as weights=, each rank its own slices."""
        self._load(opened(weights), FOR_LOAD_WEIGHTS)

    def _load(self, source: Source, strictly: Advice | None) -> Match:
        """Fill what the source has; unless None, `strictly` is what to do if names are left over."""
        agreement.begin("a load of weights", meet=True)
        wanted = {name: t for name, t in self._targets.items() if name in self._persistent}
        match = self._dialect.match(wanted, source)
        if strictly is not None:
            refuse_leftovers(source, match.missing, match.unexpected, strictly)
        load(source, self._targets, match)
        return match


def refuse_without_gradients() -> None:
    """Raise `InputError`, on all ranks alike, before a step that has to record gradients cannot."""
    if not torch.is_grad_enabled():
        raise InputError(
            "train_step computes gradients, which are off here (torch.no_grad, inference_mode). "
            "Call it outside; to evaluate, call the model itself."
        )
