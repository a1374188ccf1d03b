"""Checkpoints through `torch.distributed.checkpoint`: written on one mesh, read on any other.

The state is ``{"model", "optimizer", "step", "rng"}`` under the user's names.  Each process also writes
its own generators, scheduler, scaler and extra.  Saves are atomic (`checkpoints.directory`), and a load
that fails changes nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor

from autopar.errors import CheckpointError
from autopar.runtime import _torch
from autopar.runtime.checkpoints import manifest, optimizers
from autopar.runtime.checkpoints.directory import Version
from autopar.runtime.checkpoints.disk import synchronise
from autopar.runtime.checkpoints.layouts import as_laid_out, empty_plain, plain
from autopar.runtime.checkpoints.opening import Checkpoint, opened
from autopar.runtime.checkpoints.process import Process
from autopar.runtime.checkpoints.ranks import gathered, on_all, on_first, rank, size
from autopar.runtime.random import Seeds

Optimizer = torch.optim.Optimizer
OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)
MODEL = "model."
"""Prefix of the keys of the model's tensors."""


def save(
    path: str | Path,
    model: nn.Module,
    optimizer: Optimizer | None = None,
    step: int = 0,
    *,
    scheduler: Any = None,
    scaler: Any = None,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint directory atomically; call it on every rank.

    `scheduler`, `scaler` and the values of `extra` have a ``state_dict()``, or are data themselves:
    numbers, text, lists, dicts, tensors.  Each rank's own are kept.
    """
    target = Path(path)
    what = f"Cannot save the checkpoint {path}; an existing checkpoint there is unchanged"
    process = Process(scheduler, scaler, dict(extra or {}))
    made: list[Version] = []

    def begin() -> str:
        made.append(Version.begin(target))
        return made[0].name

    try:
        folder = target / on_first(begin, what)
        state = on_all(lambda: _plain_state(model, optimizer, step), what)
        on_all(lambda: _write(state, folder), what)
        files = gathered(on_all(lambda: _written(folder, process), what))
        about = _about(model, optimizer)
        listed = {name: file for each in files for name, file in each.items()}
        on_first(lambda: made[0].commit(about, listed), what)
    except BaseException:
        for version in made:
            version.drop()
        raise
    finally:
        for version in made:
            version.end()


def _write(state: dict[str, Any], folder: Path) -> None:
    with _alone_is_fine():
        state_dict_saver.save(
            state, storage_writer=FileSystemWriter(folder), no_dist=not dist.is_initialized()
        )


def _written(folder: Path, process: Process) -> dict[str, manifest.File]:
    """Write this rank's remaining files, flush all of them to disk, and return their digests."""
    process.write(folder)
    own = sorted((*folder.glob(f"__{rank()}_*.distcp"), *folder.glob(f"process-{rank()}.*")))
    for file in own:
        synchronise(file)
    return {file.name: manifest.digest(file) for file in own}


def _about(model: nn.Module, optimizer: Optimizer | None) -> dict[str, Any]:
    """Return the manifest's description of the save; collective."""
    about: dict[str, Any] = {"ranks": size()}
    if optimizer is not None:
        found = optimizers.merged(gathered(optimizers.groups(model, optimizer)))
        about["optimizer"] = {"kind": type(optimizer).__name__, "groups": found}
    return about


def load(
    path: str | Path,
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    scheduler: Any = None,
    scaler: Any = None,
    extra: dict[str, Any] | None = None,
) -> int:
    """Read a checkpoint into a model (parallel or plain) and the other objects; return its step.

    Values of `extra` that have a ``load_state_dict`` are loaded; others are replaced in the dict.
    Raises `CheckpointError`, on all ranks and before anything is changed, if a file is damaged or
    anything does not fit.
    """
    what = f"Cannot load the checkpoint {path}, and nothing was changed"
    found = on_all(lambda: opened(Path(path)), what)
    on_all(lambda: found.verify(rank(), size()), what)
    process = Process(scheduler, scaler, extra if extra is not None else {})
    tensors = on_all(lambda: _model_state(model), what)
    _fits(found, model, tensors, optimizer)
    states = on_all(lambda: process.read(found), what)

    wanted = on_all(lambda: _wanted(found, model, tensors, optimizer), what)
    on_all(lambda: _read(found, wanted), what)
    restored = on_all(lambda: _laid_out(found, model, optimizer, tensors, wanted), what)
    with _undone_on_failure(optimizer, process):
        on_all(lambda: _set(optimizer, process, restored, states), what)
    with torch.no_grad():
        for name, value in restored["model"].items():
            _local(tensors[name]).copy_(_local(value))
    process.resume(found, states)
    _set_seeds(model, wanted["rng"])
    return int(wanted["step"])


def _read(found: Checkpoint, wanted: dict[str, Any]) -> None:
    with _alone_is_fine():
        found.read(wanted, alone=not dist.is_initialized())


def _wanted(
    found: Checkpoint, model: nn.Module, tensors: Mapping[str, Any], optimizer: Optimizer | None
) -> dict[str, Any]:
    """Return empty tensors by key to read into; the model's own stay unchanged until all is read."""
    wanted: dict[str, Any] = {
        MODEL + name: empty_plain(value, value.dtype) for name, value in tensors.items()
    }
    if optimizer is not None:
        wanted |= optimizers.wanted(model, optimizer, found.keys)
    return wanted | {"step": torch.tensor(0), "rng": torch.empty_like(_rng(model))}


def _laid_out(
    found: Checkpoint,
    model: nn.Module,
    optimizer: Optimizer | None,
    tensors: Mapping[str, Any],
    read: Mapping[str, Any],
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "model": {name: as_laid_out(read[MODEL + name], value) for name, value in tensors.items()}
    }
    if optimizer is not None:
        made["optimizer"] = optimizers.restored(model, optimizer, read, found.path)
    return made


def _set(
    optimizer: Optimizer | None,
    process: Process,
    restored: Mapping[str, Any],
    states: dict[str, Any],
) -> None:
    """Set the states whose objects may raise: scheduler, scaler, extra and optimizer."""
    process.load(states)
    if optimizer is not None:
        optimizer.load_state_dict(restored["optimizer"])


@contextmanager
def _undone_on_failure(optimizer: Optimizer | None, process: Process) -> Iterator[None]:
    before = process.snapshot()
    own = None if optimizer is None else optimizer.state_dict()
    try:
        yield
    except BaseException:
        process.restore(before)
        if optimizer is not None and own is not None:
            optimizer.load_state_dict(own)
        raise


def _fits(
    found: Checkpoint, model: nn.Module, tensors: Mapping[str, Any], optimizer: Optimizer | None
) -> None:
    """Raise `CheckpointError`, with the differences, on all ranks if anything differs; collective."""
    faults = gathered(list(_faults(found, tensors)))
    known = {name for each in gathered(list(tensors)) for name in each}
    faults.append(list(_leftovers(found, known)))
    if optimizer is not None:
        grouped = on_all(lambda: optimizers.groups(model, optimizer), f"{found.path} does not fit")
        ours = optimizers.merged(gathered(grouped))
        faults.append(list(_optimizer_faults(found, type(optimizer).__name__, ours)))
    every = list(dict.fromkeys(fault for each in faults for fault in each))
    if every:
        more = f"; and {len(every) - optimizers.LISTED} more" if every[optimizers.LISTED :] else ""
        raise CheckpointError(
            f"{found.path} does not fit this model{' and optimizer' if optimizer else ''}: "
            f"{'; '.join(every[: optimizers.LISTED])}{more}. Build the model"
            f"{' and optimizer' if optimizer else ''} with the configuration that the checkpoint was "
            "written with."
        )


def _faults(found: Checkpoint, tensors: Mapping[str, Any]) -> Iterator[str]:
    for name, tensor in tensors.items():
        there = found.keys.get(MODEL + name)
        if not isinstance(there, TensorStorageMetadata):
            yield f"it has no {name!r}"
        elif there.size != tensor.shape:
            yield f"{name!r} is {list(there.size)}, the model's {list(tensor.shape)}"
        elif there.properties.dtype != tensor.dtype:
            yield f"{name!r} is {there.properties.dtype}, the model's {tensor.dtype}"


def _leftovers(found: Checkpoint, known: set[str]) -> Iterator[str]:
    for key in ("step", "rng"):
        if key not in found.keys:
            yield f"it has no {key!r}: only its weights can be read, by weights="
    names = {key.removeprefix(MODEL) for key in found.keys if key.startswith(MODEL)}
    if more := sorted(names - known):
        yield f"it has {optimizers.listed(more)}, which the model lacks"


def _optimizer_faults(found: Checkpoint, kind: str, ours: list[list[str]]) -> Iterator[str]:
    if found.manifest is None:
        if not any(key.startswith(optimizers.PREFIX) for key in found.keys):
            yield "it was written without an optimizer"
    elif "optimizer" not in found.manifest.about:
        yield "it was written without an optimizer"
    else:
        yield from optimizers.differences(found.manifest.about["optimizer"], kind, ours)


def _plain_state(model: nn.Module, optimizer: Optimizer | None, step: int) -> dict[str, Any]:
    """Return the state that this rank writes."""
    state: dict[str, Any] = {"model": _owned(model, _model_state(model))}
    if optimizer is not None:
        state["optimizer"] = _owned(model, optimizers.state(model, optimizer))
    made = {
        part: {k: plain(v) if isinstance(v, torch.Tensor) else v for k, v in every.items()}
        for part, every in state.items()
    }
    return {**made, "step": torch.tensor(step), "rng": _rng(model)}


def _model_state(model: nn.Module) -> dict[str, Any]:
    state = get_model_state_dict(model, options=OPTIONS) if model.state_dict() else {}
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def _owned(model: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    """Return the state without the entries that another worker of a pipeline writes."""
    elsewhere: frozenset[str] = getattr(model, "elsewhere", frozenset())

    def kept(key: str) -> bool:
        return not any(key == name or f".{name}." in f".{key}." for name in elsewhere)

    return {key: value for key, value in state.items() if kept(key)}


def _rng(model: nn.Module) -> torch.Tensor:
    seeds = _seeds(model)
    return torch.get_rng_state() if seeds is None else seeds.state


def _set_seeds(model: nn.Module, state: torch.Tensor) -> None:
    seeds = _seeds(model)
    if seeds is None:
        torch.set_rng_state(state)
    else:
        seeds.state = state


def _seeds(model: nn.Module) -> Seeds | None:
    """Return the random state of a parallel model; None for a plain one."""
    found = getattr(model, "seeds", None)
    return found if isinstance(found, Seeds) else None


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return _torch.local_of(tensor) if isinstance(tensor, DTensor) else tensor


@contextmanager
def _alone_is_fine() -> Iterator[None]:
    """Silence torch's warning that it assumes a single process without a process group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable")
        yield
