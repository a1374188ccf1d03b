"""Parallel modules for programs, in a worker process that plans each layout and state once.

Planning takes half a second, a program some tenths.  New modules share what was planned for the first
one of their kind; the compiler is asked through `Planned`, which answers what it was asked before.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

import autopar
from autopar.request.batch import Batch
from autopar.request.model_state import ModelState
from autopar.runtime.parallel import Parallel
from tests.habits.training_model import LAYOUTS, Setting, batch, fresh


class Planned:
    """A compiler's answers, which are the same for all modules of one kind."""

    def __init__(self, compiler: Any) -> None:
        self._compiler, self._known = compiler, {}

    def _once(self, name: str, key: Any, *args: Any) -> Any:
        if (name, key) not in self._known:
            self._known[name, key] = getattr(self._compiler, name)(*args)
        return self._known[name, key]

    def follow(self, *_: Any) -> None:
        """The first module of its kind is followed."""

    def outside(self) -> Any:
        return self._compiler.outside()

    def captured_digest(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], state: ModelState
    ) -> Any:
        return self._compiler.captured_digest(args, kwargs, state)

    def for_batch(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], state: ModelState) -> Any:
        key = state, Batch.of(args, kwargs).signature
        return self._once("for_batch", key, args, kwargs, state)

    def for_microbatches(
        self,
        whole: Mapping[str, Any],
        microbatch: Mapping[str, Any],
        pieces: int,
        state: ModelState,
    ) -> Any:
        key = state, Batch.of((), whole).signature, pieces
        return self._once("for_microbatches", key, whole, microbatch, pieces, state)


class Kind:
    """One layout of one model: the first module, from `parallelize`, and more like it."""

    def __init__(self, layout: str, model: str) -> None:
        chosen = LAYOUTS[layout]
        self._model = model
        self._example = batch(model, 0)
        self._is_staged = chosen.is_staged
        self._first: Any = autopar.parallelize(
            copy.deepcopy(fresh(model)), chosen.mesh or (dist.get_world_size(),), self._example,
            **chosen.options,
        )  # fmt: skip
        self._seeds = self._first.seeds.state.clone()
        if not self._is_staged:
            self._compiler = Planned(self._first._programs._compiler)
            self._first._programs._compiler = self._compiler

    def module(self, is_new: bool) -> Any:
        """A new one, or the first once more.  A new pipeline would have groups of its own."""
        return self._new() if is_new and not self._is_staged else self._reset()

    def _new(self) -> Any:
        first = self._first
        model = copy.deepcopy(fresh(self._model))
        made = Parallel(
            model, first.device_mesh, first._programs.first, self._compiler,
            example=Batch.of((), self._example),
        )  # fmt: skip
        made.seeds.state = self._seeds
        return made

    def _reset(self) -> Any:
        first, model = self._first, fresh(self._model)
        first.zero_grad()
        first.load_state_dict(model.state_dict())
        flags = dict(model.named_parameters())
        for name, parameter in first.named_parameters():
            parameter.requires_grad_(flags[name].requires_grad)
            parameter.grad = None
        modules = dict(first.named_modules())
        for name, module in model.named_modules():
            modules[name].training = module.training
        set_attributes(first, attributes(model))
        first.seeds.state = self._seeds
        return first


@cache
def kind(layout: str, model: str) -> Kind:
    """Planned when it is first wanted in this process."""
    torch.manual_seed(7)
    return Kind(layout, model)


def parallel(setting: Setting) -> Any:
    """The module of a setting, as `parallelize` gives it."""
    return kind(setting.layout, setting.model).module(setting.fresh)


def attributes(module: Any) -> list[tuple[float, float]]:
    """What programs set on layers: the dropout's p, the gain."""
    return [(layer.dropout.p, layer.gain) for layer in module.layers]


def set_attributes(module: Any, values: list[tuple[float, float]]) -> None:
    """What `attributes` gave."""
    for layer, (p, gain) in zip(module.layers, values, strict=True):
        layer.dropout.p, layer.gain = p, gain
