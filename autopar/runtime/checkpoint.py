"""Checkpoints through `torch.distributed.checkpoint`: written by one mesh, read by any other.

The state is ``{"model", "optimizer", "step", "rng"}`` under the user's names.  Parameters whose layout
is strided, which such checkpoints refuse, are laid out plainly on the way in and back on the way out.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.placement_types import Placement, Shard

from autopar.errors import InputError
from autopar.runtime import _torch
from autopar.runtime.random import Seeds

LISTED = 8
"""Tensors that a message spells out."""
Optimizer = torch.optim.Optimizer
OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)
"""The optimizer's state and settings by parameter: ranks of a pipeline have different parameters."""
MODEL, OPTIMIZER, STATE = "model.", "optimizer.", "state."
"""What keys begin with: in a checkpoint, and in the optimizer's part of it."""


def save(
    path: str | Path, model: nn.Module, optimizer: Optimizer | None = None, step: int = 0
) -> None:
    """Write a checkpoint directory, whole or not at all; call it on every rank."""
    target = Path(path)
    unfinished = target.with_name(f".{target.name}.unfinished")
    if _is_first():
        shutil.rmtree(unfinished, ignore_errors=True)
    _together()
    state = _map_tensors(_owned(model, _state(model, optimizer, step)), _plain)
    with _alone_is_fine():
        state_dict_saver.save(state, checkpoint_id=unfinished, no_dist=not dist.is_initialized())
    _together()
    if _is_first():
        _replace(unfinished, target)
    _together()


def load(path: str | Path, model: nn.Module, optimizer: Optimizer | None = None) -> int:
    """Read a checkpoint into a model (parallel or plain) and its optimizer; give its step."""
    if not Path(path).exists():
        raise InputError(f"There is no checkpoint {path}: the directory does not exist.")
    if not (Path(path) / ".metadata").is_file():
        raise InputError(f"{path} is no checkpoint: it has no .metadata file.")
    state = _state(model, optimizer, 0)
    plain = _map_tensors(state, _plain)
    stateless = _stateless(Path(path), state.get("optimizer", {}))
    for key in [key for key in plain.get("optimizer", {}) if _parameter_of(key) in stateless]:
        del plain["optimizer"][key]
    try:
        with _alone_is_fine():
            state_dict_loader.load(plain, checkpoint_id=path, no_dist=not dist.is_initialized())
    except (Exception, CheckpointException) as error:
        raise InputError(
            f"{path} does not fit this model{' and optimizer' if optimizer else ''}: "
            f"{_other_sizes(Path(path), state['model']) or _first(error)}"
        ) from error
    with torch.no_grad():
        _copy_back(plain["model"], state["model"])
    if optimizer is not None:
        _copy_back(plain["optimizer"], state["optimizer"])
        with _of_names(model, optimizer) as trains:
            if trains:
                set_optimizer_state_dict(model, optimizer, state["optimizer"], options=OPTIONS)
            else:
                _set_settings(model, optimizer, state["optimizer"])
        for name, parameter in model.named_parameters():
            if name in stateless:
                optimizer.state.pop(parameter, None)
    seeds = _seeds(model)
    if seeds is None:
        torch.set_rng_state(plain["rng"])
    else:
        seeds.state = plain["rng"]
    return int(plain["step"])


def _stateless(path: Path, optimizer: Mapping[str, Any]) -> set[str]:
    """The parameters that an optimizer has no state of in the checkpoint, as they never had a gradient.

    A new optimizer has one of each until it is told otherwise.
    """
    kept = FileSystemReader(path).read_metadata().state_dict_metadata
    ours = {key.removeprefix(OPTIMIZER) for key in kept if key.startswith(OPTIMIZER)}
    known = {key.removeprefix(MODEL) for key in kept if key.startswith(MODEL)}
    wanted, there = ({_parameter_of(key) for key in keys} for keys in (optimizer, ours))
    return {name for name in wanted - there if name in known} if ours else set()


def _parameter_of(key: str) -> str:
    """Whose state an entry of an optimizer's is; empty for what is no state."""
    return key.removeprefix(STATE).rpartition(".")[0] if key.startswith(STATE) else ""


def _other_sizes(path: Path, model: dict[str, Any]) -> str:
    """Which tensors are of another shape in the checkpoint, empty if none."""
    kept = FileSystemReader(path).read_metadata().state_dict_metadata
    wrong = []
    for name, tensor in model.items():
        there = kept.get(f"model.{name}")
        if isinstance(there, TensorStorageMetadata) and there.size != tensor.shape:
            wrong.append(f"{name!r} is {list(there.size)}, the model's {list(tensor.shape)}")
    if not wrong:
        return ""
    more = f"; and {len(wrong) - LISTED} more" if len(wrong) > LISTED else ""
    return (
        f"{'; '.join(wrong[:LISTED])}{more}. Build the model with the configuration that the "
        "checkpoint was written with."
    )


def _first(error: BaseException) -> str:
    """What the first rank that failed says, without its stack."""
    failures = getattr(error, "failures", None) or {}
    inner = next((failure[0] for failure in failures.values()), error)
    return str(inner).strip().splitlines()[0]


def _state(model: nn.Module, optimizer: Optimizer | None, step: int) -> dict[str, Any]:
    seeds = _seeds(model)
    state: dict[str, Any] = {
        "model": get_model_state_dict(model, options=OPTIONS) if model.state_dict() else {},
        "step": torch.tensor(step),
        "rng": torch.get_rng_state() if seeds is None else seeds.state,
    }
    if optimizer is not None:
        with _of_names(model, optimizer) as trains:
            state["optimizer"] = (
                get_optimizer_state_dict(model, optimizer, options=OPTIONS)
                if trains
                else _settings(model, optimizer)
            )
    return state


def _settings(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Those of parameters that are all frozen, under the names that torch would give them."""
    return {key: group[setting] for key, group, setting in _named_settings(model, optimizer)}


def _set_settings(model: nn.Module, optimizer: Optimizer, settings: Mapping[str, Any]) -> None:
    """The other way."""
    for key, group, setting in _named_settings(model, optimizer):
        group[setting] = settings[key]


def _named_settings(
    model: nn.Module, optimizer: Optimizer
) -> Iterator[tuple[str, dict[str, Any], str]]:
    """By parameter and setting: the key of a checkpoint, and where the value is."""
    name_of = {parameter: name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for setting in group.keys() - {"params"}:
                yield f"param_groups.{name_of[parameter]}.{setting}", group, setting


@contextmanager
def _of_names(model: nn.Module, optimizer: Optimizer) -> Iterator[bool]:
    """Without the empty parameter of a rank that trains none, which has no name; whether any is left.

    A rank of a pipeline may have nothing to train, and torch refuses to speak of an empty state.
    """
    nothing = getattr(model, "nothing", None)
    groups = [(group, group["params"]) for group in optimizer.param_groups]
    for group, parameters in groups:
        group["params"] = [p for p in parameters if p is not nothing]
    try:
        yield any(p.requires_grad for group, _ in groups for p in group["params"])
    finally:
        for group, parameters in groups:
            group["params"] = parameters


def _owned(model: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    """Without what another worker of a pipeline writes."""
    elsewhere: frozenset[str] = getattr(model, "elsewhere", frozenset())

    def kept(key: str) -> bool:
        return not any(key == name or f".{name}." in f".{key}." for name in elsewhere)

    parts = ("model", "optimizer")
    return {
        name: {k: v for k, v in value.items() if kept(k)} if name in parts else value
        for name, value in state.items()
    }


def _seeds(model: nn.Module) -> Seeds | None:
    """A parallel model has random state of its own."""
    found = getattr(model, "seeds", None)
    return found if isinstance(found, Seeds) else None


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in a layout that checkpoints can write; the tensor itself where it is one."""
    if not isinstance(tensor, DTensor) or not any(map(_torch.is_strided, tensor.placements)):
        return tensor
    whole = DTensor.full_tensor(tensor).detach()
    return distribute_tensor(whole, tensor.device_mesh, plain_layout(tensor))


def plain_layout(tensor: DTensor) -> tuple[Placement, ...]:
    """The nearest layout that checkpoints can write: no blocks are strided."""
    kinds = tensor.placements
    return tuple(Shard(k.dim) if _torch.is_strided(k) else k for k in kinds)  # type: ignore[attr-defined]


def _copy_back(plain: Any, target: Any) -> None:
    """Values that were read into another layout go to the tensors they stand for."""
    for key, value in plain.items():
        if isinstance(value, dict):
            _copy_back(value, target[key])
        elif isinstance(value, DTensor) and value is not target[key]:
            there = target[key]
            same = distribute_tensor(value.full_tensor(), there.device_mesh, there.placements)
            _torch.local_of(there).copy_(_torch.local_of(same))
        elif not isinstance(value, torch.Tensor):
            target[key] = value


def _map_tensors(state: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(state, dict):
        return {key: _map_tensors(value, change) for key, value in state.items()}
    return change(state) if isinstance(state, torch.Tensor) else state


@contextmanager
def _alone_is_fine() -> Iterator[None]:
    """torch warns that it guesses a single process where there is no group; we mean it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable")
        yield


def _is_first() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def _together() -> None:
    if dist.is_initialized():
        dist.barrier()


def _replace(new: Path, target: Path) -> None:
    """Put the finished directory in place; the old one stays until then."""
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.replace(target, old)
    os.replace(new, target)
    shutil.rmtree(old, ignore_errors=True)
