"""Converts an optimizer's state and settings to and from the checkpoint's form, by parameter name.

Ranks of a pipeline have different parameters, so both are stored by parameter name:
``optimizer.state.NAME.KEY`` and ``optimizer.param_groups.NAME.SETTING``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from autopar.errors import CheckpointError
from autopar.runtime.checkpoints.layouts import as_laid_out, empty_plain
from autopar.runtime.checkpoints.nested import rebuilt, spelled

PREFIX, STATE, SETTINGS = "optimizer.", "state.", "param_groups."
Optimizer = torch.optim.Optimizer
SKIPPED = {"params", "param_names"}
COUNT = "step"
"""The step count in torch's optimizer states: a scalar, whatever the parameter's shape."""
LISTED = 8


def names(model: nn.Module) -> dict[nn.Parameter, str]:
    """Return each parameter's name in the user's model, without the prefixes of torch's wrappers."""
    parallel = isinstance(model, nn.parallel.DistributedDataParallel)
    return {
        parameter: (name.removeprefix("module.") if parallel else name).replace("_orig_mod.", "")
        for name, parameter in model.named_parameters()
    }


def groups(model: nn.Module, optimizer: Optimizer) -> list[list[str]]:
    """Return the names in each group; raise `CheckpointError` if a parameter is not the model's."""
    known, found = names(model), []
    nothing = getattr(model, "nothing", None)
    for number, group in enumerate(optimizer.param_groups):
        own = [p for p in group["params"] if p is not nothing]
        strange = next((p for p in own if p not in known), None)
        if strange is not None:
            raise CheckpointError(
                f"Group {number} of the optimizer has a parameter of shape {list(strange.shape)} "
                "that is not this model's: create it from the parameters() of the model that is "
                "saved."
            )
        found.append([known[p] for p in own])
    return found


def state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Return the optimizer's state and settings as one flat dict."""
    known = names(model)
    found: dict[str, Any] = {}
    groups(model, optimizer)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = known.get(parameter)
            if name is None:
                continue  # the empty parameter of a rank that trains no other
            for key, value in optimizer.state.get(parameter, {}).items():
                for path, each in spelled(key, value):
                    found[f"{STATE}{name}.{path}"] = _data(each, f"{path} of {name!r}")
            for key in group.keys() - SKIPPED:
                found[f"{SETTINGS}{name}.{key}"] = _data(group[key], f"{key} of {name!r}")
    return dict(sorted(found.items()))


def _data(value: Any, what: str) -> Any:
    parts = value if isinstance(value, (tuple, list)) else [value]
    if all(isinstance(each, (torch.Tensor, bool, int, float, str, type(None))) for each in parts):
        return value
    raise CheckpointError(
        f"The optimizer keeps {what} as a {type(value).__name__}, which a checkpoint cannot "
        "hold: it holds tensors, numbers and strings. Save without the optimizer, and its "
        "state_dict in extra=."
    )


def merged(of_ranks: list[list[list[str]]]) -> list[list[str]]:
    """Merge the groups of all ranks."""
    count = max(map(len, of_ranks), default=0)
    made: list[dict[str, None]] = [{} for _ in range(count)]
    for found in of_ranks:
        for number, group in enumerate(found):
            made[number].update(dict.fromkeys(group))
    return [list(group) for group in made]


def differences(kept: Mapping[str, Any], kind: str, ours: list[list[str]]) -> Iterator[str]:
    """Yield the differences between the current optimizer and the saved one."""
    if kept["kind"] != kind:
        yield f"it was written with {kept['kind']}, and this optimizer is {kind}"
        return
    theirs: list[list[str]] = kept["groups"]
    there = {name: number for number, group in enumerate(theirs) for name in group}
    here = {name: number for number, group in enumerate(ours) for name in group}
    if missing := sorted(here.keys() - there.keys()):
        yield f"it has no state of {listed(missing)}, which this optimizer has"
    if more := sorted(there.keys() - here.keys()):
        yield f"it has the state of {listed(more)}, which this optimizer lacks"
    if len(theirs) != len(ours):
        yield f"it has {len(theirs)} parameter groups, and this optimizer {len(ours)}"
    moved = sorted(name for name in here.keys() & there.keys() if here[name] != there[name])
    if moved and len(theirs) == len(ours):
        name = moved[0]
        yield f"{name!r} is in group {there[name]}, and in group {here[name]} of this optimizer"


def listed(words: list[str]) -> str:
    """List the first `LISTED` words, and the number of others."""
    more = f" and {len(words) - LISTED} more" if len(words) > LISTED else ""
    return ", ".join(map(repr, words[:LISTED])) + more


def wanted(model: nn.Module, optimizer: Optimizer, kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys to read from the checkpoint, with empty tensors (None for other values)."""
    found: dict[str, Any] = {}
    by_name: dict[str, list[str]] = {}
    for key in kept:
        for kind in (STATE, SETTINGS):
            if key.startswith(PREFIX + kind):
                name = key.removeprefix(PREFIX + kind).rpartition(".")[0]
                by_name.setdefault(name, []).append(key)
    known = names(model)
    _refuse_unread(by_name, set(known.values()))
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for key in by_name.get(known.get(parameter, ""), ()):
                there = kept[key]
                is_tensor = isinstance(there, TensorStorageMetadata)
                empty = is_tensor and _empty(parameter, key.rpartition(".")[2], there, group)
                found[key] = empty if is_tensor else None
    return found


def _refuse_unread(by_name: Mapping[str, list[str]], known: set[str]) -> None:
    """Raise `CheckpointError` for lists of tensors as earlier versions wrote them, key by key."""
    for name, keys in by_name.items():
        parts = name.split(".")
        if name not in known and any(".".join(parts[:n]) in known for n in range(1, len(parts))):
            raise CheckpointError(
                f"The checkpoint has {keys[0]!r}, a part of a list that an earlier version of autopar "
                "wrote and cannot read. Load it without the optimizer."
            )


def _empty(
    parameter: torch.Tensor, key: str, there: TensorStorageMetadata, group: Mapping[str, Any]
) -> torch.Tensor:
    """Return an empty tensor: in the parameter's layout if it has its shape, otherwise replicated."""
    dtype = there.properties.dtype
    if there.size == parameter.shape and key != COUNT:
        return empty_plain(parameter, dtype)
    on_device = len(there.size) or group.get("capturable") or group.get("fused")
    return torch.empty(there.size, dtype=dtype, device=parameter.device if on_device else "cpu")


def restored(
    model: nn.Module, optimizer: Optimizer, read: Mapping[str, Any], path: object
) -> dict[str, Any]:
    """Build the optimizer's state dict from values that were read by key.

    Raise `CheckpointError` if parameters of one group were saved with different settings.
    """
    known = names(model)
    own = optimizer.state_dict()
    made: dict[str, Any] = {"state": {}, "param_groups": []}
    for group, described in zip(optimizer.param_groups, own["param_groups"], strict=True):
        settings: dict[str, Any] = {}
        for parameter, number in zip(group["params"], described["params"], strict=True):
            name = known.get(parameter)
            if name is None:
                continue
            state = rebuilt(
                (key, as_laid_out(_on_mesh(value, parameter), parameter))
                for key, value in _of(read, f"{PREFIX}{STATE}{name}.")
            )
            if state:
                made["state"][number] = state
            for key, value in _of(read, f"{PREFIX}{SETTINGS}{name}."):
                if key in settings and not _equal(settings[key], value):
                    raise CheckpointError(
                        f"{path} has other parameter groups than this optimizer: {key} of {name!r} is "
                        f"{value!r}, and {settings[key]!r} of another parameter of its group. Build the "
                        "optimizer with the groups that were saved."
                    )
                settings.setdefault(key, value)
        made["param_groups"].append({**described, **settings})
    return made


def _of(read: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in read.items():
        rest = key.removeprefix(prefix)
        if rest != key and "." not in rest:
            yield rest, value


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return torch.equal(torch.as_tensor(one), torch.as_tensor(other))
    return bool(one == other)


def _on_mesh(value: Any, parameter: torch.Tensor) -> Any:
    """Replicate a plain state tensor on the mesh of its DTensor parameter; leave scalars as they are."""
    if not isinstance(parameter, DTensor) or not isinstance(value, torch.Tensor):
        return value
    if isinstance(value, DTensor) or not value.ndim:
        return value
    mesh = parameter.device_mesh
    return distribute_tensor(value, mesh, [Replicate()] * mesh.ndim)
