"""Refuses operations that modules of a parallel model do not support, with the alternative.

Parameters are sharded over the ranks, and the step runs emitted code.  A submodule has the user's class,
its mode and its attributes, but computes nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch
from torch import nn

from autopar.errors import InputError

BEFORE = "Change the model before autopar.parallelize, and build the parallel model again."
HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip
"""Attributes in which a module keeps hooks on its forward and backward."""


class Closed(dict[Any, Any]):
    """A read-only dict of a module's parameters, buffers, children or hooks.

    `path` is the module's name; `kind` is the kind of the items.
    """

    path: str
    kind: str

    @classmethod
    def over(cls, items: dict[str, Any], path: str, kind: str) -> Closed:
        """Return a closed dict with these items."""
        made = cls(items)
        made.path, made.kind = path, kind
        return made

    def __setitem__(self, key: Any, value: Any) -> None:
        if key not in self or self[key] is not value:
            self._refuse(key)

    def __delitem__(self, key: Any) -> None:
        self._refuse(key)

    def _refuse(self, key: Any = "...") -> NoReturn:
        where = f"{self.path}.{key}".lstrip(".")
        if self.kind == "hook":
            raise InputError(
                f"A hook on {self.path or 'the model'} would never be called: the step runs the "
                "emitted code of the whole model, not its modules. Name the tensors that you "
                "want to see with batches=autopar.Batches(outputs=...), or register the hook on "
                "the model before autopar.parallelize if it computes with tensor operations "
                "alone. Change gradients in parameter.grad between backward and "
                "optimizer.step()."
            )
        values = (
            f" To change values, write into it under torch.no_grad(): {where}.copy_(...)."
            if self.kind != "module"
            else ""
        )
        raise InputError(
            f"{where} cannot be set, replaced or removed: the step computes with the {self.kind}s that "
            f"the model had when it was made parallel.{values} {BEFORE}"
        )

    def _closed(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse()

    pop = popitem = clear = update = setdefault = _closed
    __ior__ = _closed


def no_forward(path: str, kind: str) -> Callable[..., NoReturn]:
    """Return the replacement for the forward of a submodule, which raises `InputError`."""

    def forward(*_: Any, **__: Any) -> NoReturn:
        raise InputError(
            f"{path or kind} ({kind}) cannot be called by itself: a parallel model has only its "
            "whole forward, which parallel(**batch) runs. Name its output with "
            "batches=autopar.Batches(outputs=...); or load parallel.full_state_dict() into the "
            f"plain model and call {path or 'that'} there."
        )

    return forward


def no_copy(path: str) -> Callable[..., NoReturn]:
    """Return the replacement for ``__deepcopy__`` and ``__reduce_ex__``, which raises `InputError`."""

    def refuse(*_: Any) -> NoReturn:
        raise InputError(
            f"{path or 'A parallel model'} cannot be copied or pickled: it holds this rank's "
            "shards and the groups of its processes. To write it, call parallel.save(path), or "
            "torch.save of parallel.full_state_dict(). For an average of weights keep "
            "[p.detach().clone() for p in parallel.parameters()] and move each by lerp_. For a "
            "second model, build one with autopar.parallelize and load "
            "parallel.full_state_dict() into it with load_state_dict."
        )

    return refuse


WHOLE = "Load parallel.full_state_dict() into the plain model (model.load_state_dict)"
OF_WHOLE_MODELS = {
    "save_pretrained": "Call parallel.full_state_dict() on every rank, and on one of them "
    "model.save_pretrained(path, state_dict=...) of the plain model.",
    "push_to_hub": f"{WHOLE} on one rank, and push that.",
    "resize_token_embeddings": BEFORE,
    "gradient_checkpointing_enable": 'Pass autopar.parallelize recompute="full" or "selective".',
    "gradient_checkpointing_disable": "Leave out recompute= of autopar.parallelize.",
    "generate": f"{WHOLE}, and generate there.",
    "add_adapter": BEFORE,
    "load_adapter": BEFORE,
    "merge_adapter": BEFORE,
}
"""Methods of Hugging Face models that need whole weights or another forward, and the alternatives."""


def refuse_whole_model(name: str, root: nn.Module) -> None:
    """Raise `InputError` if a method of the user's model cannot work on shards."""
    if name in OF_WHOLE_MODELS and callable(getattr(type(root), name, None)):
        raise InputError(
            f"{name} of {type(root).__name__} does not work on a parallel model, which holds "
            f"shards of its weights and runs emitted code. {OF_WHOLE_MODELS[name]}"
        )


def refuse_wrapper(name: str) -> None:
    """Raise `InputError` where `DistributedDataParallel` asks a module what it shall not synchronise."""
    if name == "_ddp_params_and_buffers_to_ignore":
        raise InputError(
            "A parallel model cannot be wrapped in DistributedDataParallel: it synchronises its "
            "gradients itself. Use it as it is. What wraps models (the Trainer of transformers, prepare "
            "of accelerate) is replaced by a loop of your own; accelerate may prepare the optimizer and "
            "the scheduler alone."
        )


class Elsewhere:
    """Placeholder for a parameter that ranks of another stage hold; any use raises `InputError`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self) -> NoReturn:
        raise InputError(
            f"{self._name} is held by the ranks of another stage of the pipeline. Loop over "
            "parallel.named_parameters(), which lists the parameters of this rank; or read all "
            "of them with parallel.full_state_dict()."
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = [each for each in (*args, *(kwargs or {}).values()) if isinstance(each, cls)]
        found[0]._refuse() if found else cls("A parameter")._refuse()

    def __repr__(self) -> str:
        return f"{self._name} of another stage"


Kind = tuple[torch.dtype, str]
"""Dtype and device type of a tensor."""


def unchanged(module: nn.Module, path: str, kinds: Iterable[Kind]) -> Callable[..., nn.Module]:
    """Return the replacement for ``_apply`` (``to``, ``half`` ...): it refuses anything but a no-op."""

    def apply(function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        for dtype, device in kinds:
            probe = torch.empty(1, dtype=dtype, device=device)
            shared, made = probe.is_shared(), function(probe)
            if (made.dtype, made.device, made.is_shared()) != (probe.dtype, probe.device, shared):
                raise InputError(
                    f"{path or 'The model'} is {probe.dtype} on {probe.device}, and cannot become "
                    f"{made.dtype} on {made.device} once it is parallel. For another dtype convert "
                    'the model before autopar.parallelize, or pass precision="bfloat16" or '
                    "torch.autocast to it; the devices are those of the mesh."
                )
        return module

    return apply


def no_right_inverse(path: str, originals: Iterable[str]) -> Callable[..., NoReturn]:
    """Return the replacement for ``right_inverse`` of a parametrization, which raises `InputError`."""

    def refuse(*_: Any) -> NoReturn:
        raise InputError(
            f"{path.replace('parametrizations.', '')} is computed by a parametrization, and cannot be "
            f"set on a parallel model. Write into {' and '.join(originals)} of {path} instead, under "
            "torch.no_grad(), with copy_; or set it on the plain model before autopar.parallelize."
        )

    return refuse


def no_empty(path: str) -> Callable[..., NoReturn]:
    """Return the replacement for ``to_empty``, which raises `InputError`."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise InputError(
            f"{path or 'The model'} already has values, which to_empty would discard. Set other "
            "values with parallel.load_state_dict, or pass autopar.parallelize weights=."
        )

    return refuse
