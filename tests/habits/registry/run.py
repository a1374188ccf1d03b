"""Runs habits on the ranks of a pool: in one process, in DDP, under a way of autopar."""

from __future__ import annotations

import copy
import io
import os
import random
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import autopar
from tests.habits.registry import HABITS, models
from tests.habits.registry.habit import DIFFERS, EQUAL, RAISES, Habit

os.environ.setdefault("AUTOPAR_CACHE", tempfile.mkdtemp(prefix="autopar_cache_"))
ONE, DDP = "one", "DDP"
AUTOPAR = ("ddp", "fsdp", "megatron", "solver", "stages")
Names = dict[str, Any]


def verdicts(way: str, names: Iterable[str]) -> dict[str, str]:
    """How each habit ends under `way`: `EQUAL`, ``raises: MESSAGE`` or ``differs: HOW``."""
    warnings.simplefilter("ignore")
    found = {}
    for name in names:
        habit = HABITS[name]
        found[name] = _verdict(habit, way, habit.code)
        applies = way in AUTOPAR and (way != "stages" or habit.remedy_in_stages)
        if applies and habit.remedy and habit.expected(way) and not found[name].startswith(DIFFERS):
            ended = _verdict(habit, way, habit.remedy)
            if ended != EQUAL:
                found[name] = f"{DIFFERS}: its remedy: {ended}"
    return found


def _verdict(habit: Habit, way: str, code: str) -> str:
    with _undone():
        want = _run(habit.plain or habit.code, names(ONE))
    with _undone():
        given = names(way)
        raised = ""
        try:
            got = _run(code, given)
        except Exception as error:
            raised = f"{RAISES}: {type(error).__name__}: {error}"
        if refused := _of_any_rank(raised):
            _forget(way)
            return refused
        differences = list(_differences(got, want, way, habit.tolerance))
    if habit.spoils or _of_any_rank("; ".join(differences)):
        _forget(way)
    return f"{DIFFERS}: {'; '.join(differences[:3])}" if differences else EQUAL


def _of_any_rank(said: str) -> str:
    """What the first rank says that says anything."""
    of_ranks: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(of_ranks, said)
    return next(filter(None, of_ranks), "")


class _undone:
    """What a program may set for the whole process is put back."""

    def __enter__(self) -> None:
        self._dtype, self._grad = torch.get_default_dtype(), torch.is_grad_enabled()
        self._state, self._random = torch.get_rng_state(), random.getstate()

    def __exit__(self, *_: object) -> None:
        torch.set_default_dtype(self._dtype)
        torch.set_grad_enabled(self._grad)
        torch.set_rng_state(self._state)
        random.setstate(self._random)


def _run(code: str, given: Names) -> Names:
    for seeded in (torch.manual_seed, random.seed, numpy.random.seed):
        seeded(0)
    exec(compile(code, "<habit>", "exec"), given)
    return given


def names(way: str) -> Names:
    """The names that a program is written in."""
    model = _shared(way)
    given: Names = vars(models) | {
        "torch": torch,
        "nn": nn,
        "dist": dist,
        "copy": copy,
        "io": io,
        "random": random,
        "numpy": numpy,
        "os": os,
        "autopar": autopar,
        "train": train,
        "tree": models.batch,
        "parts": 1 if way == ONE else _parts(way),
        "batch": lambda step=0, samples=models.SAMPLES: _part(models.batch(step, samples), way),
        "part": lambda whole: _part(whole, way),
        "sync": lambda module, on: nullcontext() if on or way == ONE else module.no_sync(),
        "prepare": lambda net, given=None, **options: prepared(net, way, given, **options),
        "first": _first if way != ONE else lambda value: value,
        "sgd": _sgd,
        "whole": _whole,
        "state": lambda module: _state(module, way),
        "ranks": 1 if way == ONE else dist.get_world_size(),
        "model": model,
        "own": model.module if way == DDP else model,
        "optimizer": _sgd(model),
        "result": None,
    }
    return given


def train(model: Any, batch: Mapping[str, Any]) -> torch.Tensor:
    """Forward and backward, as this kind of module does them."""
    if hasattr(type(model), "TRAINS_BY"):
        loss: torch.Tensor = model.train_step(**batch)
        return loss
    loss = model(**batch)
    loss.backward()
    return loss


def prepared(net: nn.Module, way: str, example: Any = None, **options: Any) -> Any:
    """The model as this way trains it."""
    if way == ONE:
        return net
    if way == DDP:
        return DistributedDataParallel(net)
    given: dict[str, Any] = {"optimizer": torch.optim.SGD, **options}
    if way == "stages":
        given |= {"pipeline": autopar.Pipeline(2, "gpipe", 1)}
    elif way != "solver":
        given |= {"preset": way}
    example = models.batch(0) if example is None else example
    return autopar.parallelize(net, dist.get_world_size(), example, **given)


def _sgd(model: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def _part(whole: Any, way: str) -> Any:
    """Of a global batch what this process passes to its model."""
    if way != DDP:
        return whole
    rank, size = dist.get_rank(), dist.get_world_size()
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.chunk(size)[rank], whole)


def _first(value: Any) -> Any:
    """Rank 0's."""
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


_KEPT: dict[tuple[str, int], Any] = {}


@cache
def _fresh() -> nn.Module:
    torch.manual_seed(0)
    return models.Net().double()


def _shared(way: str) -> Any:
    """One model for all habits of a way, as new: what one leaves behind fails the next."""
    if way in (ONE, DDP):
        return prepared(copy.deepcopy(_fresh()), way)
    key = way, dist.get_world_size()
    if key not in _KEPT:
        _KEPT[key] = prepared(copy.deepcopy(_fresh()), way)
        return _KEPT[key]
    model = _KEPT[key]
    model.zero_grad()
    model.train()
    model.load_state_dict(_fresh().state_dict())
    return model


def _forget(way: str) -> None:
    _KEPT.pop((way, dist.get_world_size()), None)


def _differences(got: Names, want: Names, way: str, tolerance: float) -> Iterable[str]:
    yield from _unequal(
        _gradients(got["model"], way), _gradients(want["model"], ONE), "gradient", tolerance
    )
    states = (_state(got["model"], way), _state(want["model"], ONE))
    yield from _unequal(*states, "weight", tolerance)
    if way != DDP:
        found = {"": _plain(got["result"])}
        yield from _unequal(found, {"": _plain(want["result"])}, "result", tolerance)


def _state(model: Any, way: str) -> Names:
    if way == DDP:
        model = model.module if isinstance(model, DistributedDataParallel) else model
    return (model.full_state_dict if way in AUTOPAR else model.state_dict)()  # type: ignore[no-any-return]


def _gradients(model: Any, way: str) -> Names:
    model = model.module if isinstance(model, DistributedDataParallel) else model
    return {name: _whole(p.grad) for name, p in model.named_parameters()}


def _unequal(got: Names, want: Names, what: str, tolerance: float) -> Iterable[str]:
    if what == "weight" and got.keys() != want.keys():
        yield f"{what}s {sorted(got.keys() ^ want.keys())} are on one side"
    sizes = [float(v.abs().max()) for v in want.values() if _counts(v)]
    scale = max([1e-3, *sizes]) if what == "gradient" else None
    for name in got.keys() & want.keys():
        how = _beside(got[name], want[name], scale, tolerance)
        if how:
            yield f"{what} {name}: {how}"


def _counts(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() > 0 and value.dtype != torch.bool


@torch.no_grad()
def _beside(got: Any, want: Any, scale: float | None, tolerance: float) -> str:
    if isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor):
        if got.shape != want.shape:
            return f"shape {tuple(got.shape)} beside {tuple(want.shape)}"
        if not _counts(want):
            return "" if torch.equal(got, want) else "others"
        size = scale or max(1.0, float(want.abs().max()))
        worst = float((got.double() - want.double()).abs().max())
        return "" if worst <= tolerance * size else f"{worst:.1e} off, of {size:.1e}"
    if isinstance(want, list | tuple) and isinstance(got, list | tuple) and len(got) == len(want):
        each = (_beside(a, b, scale, tolerance) for a, b in zip(got, want, strict=True))
        return next(filter(None, each), "")
    if isinstance(want, float) and isinstance(got, float):
        return "" if abs(got - want) <= tolerance * max(1.0, abs(want)) else f"{got} beside {want}"
    return "" if type(got) is type(want) and got == want else f"{got} beside {want}"


def _whole(value: Any) -> Any:
    made = value.full_tensor() if isinstance(value, DTensor) else value
    return made.detach() if isinstance(made, torch.Tensor) else made


def _plain(value: Any) -> Any:
    found: Callable[[Any], Any] = _whole
    return torch.utils._pytree.tree_map(found, value)


def _parts(way: str) -> int:
    """Into how many parts a batch is cut."""
    return dist.get_world_size() if way in ("ddp", "fsdp") else 1
