"""Unwraps models that are wrapped, and refuses those that are sharded, converted or unsupported.

Each kind is one record with its test and its error message.  The check runs before everything else.
Wrappers of a whole model (DDP, DataParallel, `torch.compile`) are removed, and names are those of the
inner model: ``weight``, not ``module.weight`` or ``_orig_mod.weight``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from autopar.errors import InputError
from autopar.utils.messages import argument

Found = str | None
"""A short description of what is wrong with a module or tensor; None if nothing is."""


@dataclass(frozen=True)
class Wrapper:
    """A kind of module that wraps a model; `inside` returns the model, or None for other modules."""

    name: str
    inside: Callable[[nn.Module], nn.Module | None]


@dataclass(frozen=True)
class RefusedModule:
    """A kind of module that cannot be captured or parallelised."""

    name: str
    found: Callable[[nn.Module], bool]
    what: str
    remedy: str


@dataclass(frozen=True)
class RefusedTensor:
    """A kind of parameter or buffer that no plan can shard."""

    name: str
    found: Callable[[torch.Tensor], bool]
    what: str
    remedy: str


def _compiled(module: nn.Module) -> nn.Module | None:
    inside = vars(module).get("_modules", {}).get("_orig_mod")
    return inside if isinstance(inside, nn.Module) else None


def _replica(module: nn.Module) -> nn.Module | None:
    replicas = (DistributedDataParallel, DataParallel)
    return module.module if isinstance(module, replicas) else None


def _is_foreign(hook: Any) -> bool:
    """Whether a hook is not torch's own; those only store a version (`torch.nn.utils.spectral_norm`)."""
    where = str(getattr(hook, "__module__", None) or type(hook).__module__)
    return where.partition(".")[0] != "torch"


WRAPPERS = (Wrapper("torch.compile", _compiled), Wrapper("DDP or DataParallel", _replica))
BEFORE = (
    "Pass the model as it was before, on every rank; "
    f"{argument('preset', 'fsdp')} shards it the same way."
)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
MODULES = (
    RefusedModule(
        "FSDP",
        lambda m: isinstance(m, FullyShardedDataParallel),
        "is wrapped in FullyShardedDataParallel, which holds parts of flattened parameters",
        BEFORE,
    ),
    RefusedModule(
        "FSDP2",
        lambda m: isinstance(m, FSDPModule),
        "was sharded by fully_shard",
        BEFORE,
    ),
    RefusedModule(
        "replicas inside",
        lambda m: isinstance(m, (DistributedDataParallel, DataParallel)),
        "is itself wrapped in DDP or DataParallel",
        "Replace it by the module inside (.module): autopar sums all gradients.",
    ),
    RefusedModule(
        "TorchScript",
        lambda m: isinstance(m, torch.jit.ScriptModule),
        "is a TorchScript module, which has no Python code to capture",
        "Pass the nn.Module that it was made of, with load_state_dict(scripted.state_dict()).",
    ),
    RefusedModule(
        "quantised",
        lambda m: type(m).__module__.startswith(("torch.ao.nn.quantized", "torch.nn.quantized")),
        "is quantised and cannot be trained",
        "Pass the model as it was before the conversion.",
    ),
    RefusedModule(
        "average of all batches",
        lambda m: isinstance(m, BATCH_NORMS) and m.momentum is None and m.training,
        "has momentum=None: it averages all batches so far by a count that forward reads",
        "Give it a number, as in momentum=0.1, or call eval() on it.",
    ),
    RefusedModule(
        "hooks of state_dict",
        lambda m: any(
            map(_is_foreign, (*m._state_dict_hooks.values(), *m._state_dict_pre_hooks.values()))
        ),
        "has a state_dict hook, which state_dict of a parallel model would not call",
        "Remove it before, and change what parallel.full_state_dict() gives.",
    ),
)
TENSORS = (
    RefusedTensor(
        "lazy",
        lambda t: isinstance(t, (UninitializedParameter, UninitializedBuffer)),
        "has no shape yet: it belongs to a lazy module",
        "Run the model once on a batch before, as in model(**batch).",
    ),
    RefusedTensor(
        "DTensor",
        lambda t: isinstance(t, DTensor),
        "is a DTensor, so the model has been parallelized already",
        BEFORE,
    ),
    RefusedTensor(
        "quantised",
        lambda t: t.is_quantized,
        "is quantised",
        "Use t.dequantize() instead.",
    ),
    RefusedTensor(
        "nested",
        lambda t: t.is_nested,
        "is a nested tensor",
        "Use t.to_padded_tensor(0.0) instead.",
    ),
    RefusedTensor(
        "sparse",
        lambda t: t.layout is not torch.strided,
        "is sparse",
        "Use t.to_dense() instead.",
    ),
    RefusedTensor(
        "complex",
        lambda t: t.is_complex() and isinstance(t, nn.Parameter),
        "is complex, which no optimizer's shards are tested for",
        "Use torch.view_as_real(t) as the parameter, and torch.view_as_complex(p) in forward.",
    ),
    RefusedTensor(
        "subclass",
        lambda t: type(t.data) is not torch.Tensor,
        "is a tensor subclass",
        "Use a plain tensor instead, and convert it in forward.",
    ),
)


def arrived(model: Any) -> Any:
    """Return the model without its wrappers; raise `InputError` if it cannot be planned."""
    if not isinstance(model, nn.Module):
        return model
    model = unwrapped(model)
    for path, module in model.named_modules():
        _refuse_surrogates(model, path)
        for kind in MODULES:
            if kind.found(module):
                where = f"The module {path!r} of {type(model).__name__}" if path else "The model"
                raise InputError(f"{where} {kind.what}. {kind.remedy}")
    for what, name, tensor in _tensors(model):
        _refuse_surrogates(model, name)
        for unfit in TENSORS:
            if unfit.found(tensor):
                raise InputError(
                    f"The {what} {name!r} of {type(model).__name__} {unfit.what}. {unfit.remedy}"
                )
    _refuse_devices(model)
    return model


def _refuse_surrogates(model: nn.Module, path: str) -> None:
    """Raise `InputError` for a name with lone surrogates, as file names that are not UTF-8 produce.

    They cannot be written to UTF-8 files.
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"The name {path!r} in {type(model).__name__} contains an unpaired surrogate, which "
            "UTF-8 cannot encode. Give the module another name, as "
            "name.encode(errors='replace').decode() does."
        ) from None


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside all wrappers."""
    for wrapper in WRAPPERS:
        inside = wrapper.inside(model)
        if inside is not None:
            return unwrapped(inside)
    return model


def _tensors(model: nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    yield from (("parameter", name, tensor) for name, tensor in model.named_parameters())
    yield from (("buffer", name, tensor) for name, tensor in model.named_buffers())


def _refuse_devices(model: nn.Module) -> None:
    """Raise `InputError` for a model on several devices: plans have no transfers between its layers."""
    places: dict[str, str] = {}
    for _, name, tensor in _tensors(model):
        if not tensor.is_meta:
            places.setdefault(str(tensor.device), name)
    mapped = getattr(model, "hf_device_map", None) or {}
    if len(set(map(str, mapped.values()))) > 1:
        places = {str(place): name for name, place in mapped.items()}
    if len(places) > 1:
        spread = ", ".join(f"{name!r} on {device}" for device, name in places.items())
        raise InputError(
            f"{type(model).__name__} is on several devices ({spread}). Move it to one of them, "
            "or load it without device_map: autopar puts each rank's part on its own device."
        )
