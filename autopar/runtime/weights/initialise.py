"""Initialises a model on the meta device, one module at a time.

The values are those of a single process that runs ``model.to_empty(device="cpu")``,
``torch.manual_seed(seed)`` and ``model.apply(init)``.  Modules are visited in that order.  During a
visit only the visited module (and tensors of other modules that its initialiser accesses) has real
tensors, which are sharded and freed before the next visit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autopar.errors import InputError
from autopar.request.weights import Init
from autopar.runtime import _torch
from autopar.runtime.weights.target import Target

MOST = 0.5
"""Largest share of the model's bytes that one visit may access; see `MOST_MODULES`."""
MOST_MODULES = 4
"""A visit that accesses tensors of at most so many other modules may exceed `MOST`."""


@dataclass(frozen=True)
class Place:
    """A module's attribute under which a tensor is registered."""

    module: nn.Module
    key: str

    @property
    def tensor(self) -> torch.Tensor:
        """The currently registered tensor."""
        found: torch.Tensor = getattr(self.module, self.key)
        return found

    def put(self, tensor: torch.Tensor) -> None:
        """Register another tensor of the same kind."""
        registered: dict[str, Any] = self.module._buffers
        if self.key in self.module._parameters:
            registered = self.module._parameters
        registered[self.key] = tensor


class Visits:
    """Visits a model's modules to initialise the `lacking` tensors, and tracks which are done."""

    def __init__(
        self,
        model: nn.Module,
        targets: Mapping[str, Target],
        lacking: set[str],
        send: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self._model, self._targets, self._lacking, self._send = model, targets, lacking, send
        self._tensors = dict((*model.named_parameters(), *model.named_buffers()))
        self._name = {id(tensor): name for name, tensor in self._tensors.items()}
        self._places: dict[str, list[Place]] = {name: [] for name in self._tensors}
        for module in model.modules():
            for key, tensor in _own(module):
                self._places[self._name[id(tensor)]].append(Place(module, key))
        self._storage = {_torch.storage_of(t): n for n, t in self._tensors.items() if t.is_meta}
        self._path = {module: path or "the model" for path, module in model.named_modules()}
        self._done: set[str] = set()

    def run(self, init: Init | None, seed: int) -> None:
        """Visit every module that has tensors to initialise in itself or below."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            for module, owner in _in_order(self._model, self._model):
                below = {self._name[id(t)] for m in module.modules() for _, t in _own(m)}
                if below & self._lacking:
                    self._visit(module, init or _own_init(module, owner))
        left = sorted(self._lacking - self._done)
        if left:
            raise InputError(self._says_nothing_of(left[0]))

    def _visit(self, module: nn.Module, init: Init) -> None:
        """Run the initialiser, again with more real tensors until it accesses no other meta tensor."""
        state = torch.get_rng_state()
        own = {self._name[id(t)] for _, t in _own(module) if t.is_meta}
        names = own
        while True:
            torch.set_rng_state(state)
            with self._real(names):
                with _Reaches(self._storage, names) as reaches:
                    init(module)
                if not reaches.found:
                    self._keep(names)
                    return
            names = names | reaches.found
            self._check_reach(module, names, own)

    @contextmanager
    def _real(self, names: set[str]) -> Iterator[None]:
        """Within the context, the model has real tensors under these names."""
        for name in sorted(names):
            meta = self._tensors[name]
            real = self._before(name, meta)
            if isinstance(meta, nn.Parameter):
                real = nn.Parameter(real, requires_grad=meta.requires_grad)
            for place in self._places[name]:
                place.put(real)
        try:
            yield
        finally:
            for name in names:
                for place in self._places[name]:
                    place.put(self._tensors[name])

    def _before(self, name: str, meta: torch.Tensor) -> torch.Tensor:
        """Return a tensor's value from an earlier visit, or a tensor filled with the mark."""
        if name in self._done:
            return self._targets[name].whole()
        return _marked(torch.empty_like(meta, device="cpu", requires_grad=False))

    def _keep(self, names: set[str]) -> None:
        """Store this rank's shards of the tensors that are completely initialised."""
        for name in sorted(names & self._lacking):
            places, meta = self._places[name], self._tensors[name]
            made = places[0].tensor.detach()
            if (made.shape, made.dtype) != (meta.shape, meta.dtype):
                raise InputError(
                    f"The initialiser makes {name!r} a {made.dtype} of shape {tuple(made.shape)}; "
                    f"the model has a {meta.dtype} of shape {tuple(meta.shape)}."
                )
            if not _has_mark(made):
                self._targets[name].put(self._send(made))
                self._done.add(name)

    def _check_reach(self, module: nn.Module, names: set[str], own: set[str]) -> None:
        """Raise `InputError` for an initialiser that needs most of the model in memory at once."""
        sizes = {name: t.numel() * t.element_size() for name, t in self._tensors.items()}
        reached = sum(sizes[name] for name in names)
        owners = {place.module for name in names - own for place in self._places[name]}
        many = len(owners) > (1 if module is self._model else MOST_MODULES)
        if many and reached > MOST * sum(sizes.values()):
            raise InputError(
                f"The initialiser of {self._path[module]} ({type(module).__name__}) sets {len(names)} "
                "tensors of other modules at once, so it cannot be run one module at a time: it "
                "would hold the whole model. Pass weights=autopar.Weights(init=...) with a function of "
                "one module that sets that module's own tensors, or weights=."
            )

    def _says_nothing_of(self, name: str) -> str:
        module, key = self._places[name][0].module, self._places[name][0].key
        return (
            f"Nothing initialises all of {name!r} (shape {list(self._targets[name].shape)}), a "
            f"tensor on the meta device: {key!r} of a {type(module).__name__}. Give that class a "
            "reset_parameters() that sets it, pass weights=autopar.Weights(init=...) with a "
            "function of one module that does, or weights= that contain it."
        )


class _Reaches(_torch.TorchDispatchMode):
    """Records which of the model's meta tensors, other than the `real` ones, operators access."""

    def __init__(self, names: Mapping[int, str], real: set[str]) -> None:
        super().__init__()
        self._names, self._real = names, real
        self.found: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for value in _torch.tree_leaves((args, kwargs)):
            if isinstance(value, torch.Tensor) and value.is_meta:
                name = self._names.get(_torch.storage_of(value))
                if name in self._real:
                    raise InputError(
                        f"The initialiser sets {name!r} through an object other than the module "
                        "that registers it. Pass weights=autopar.Weights(init=...) with a "
                        "function that uses the module's attribute."
                    )
                if name is not None:
                    self.found.add(name)
        return func(*args, **(kwargs or {}))


def _in_order(module: nn.Module, owner: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Yield modules in the order of `nn.Module.apply`, with the owner of their `_init_weights`."""
    owner = module if hasattr(module, "_init_weights") else owner
    for child in module.children():
        yield from _in_order(child, owner)
    yield module, owner


def _own_init(module: nn.Module, owner: nn.Module) -> Init:
    """Return a module's own initialiser: its owner's `_init_weights` or its `reset_parameters`."""
    of_library = getattr(owner, "_init_weights", None)
    if callable(of_library):
        return of_library  # type: ignore[no-any-return]
    for name in ("reset_parameters", "_reset_parameters"):
        method = getattr(module, name, None)
        if callable(method):
            return lambda _: method()
    return lambda _: None


def _own(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and buffers that the module registers itself."""
    for kind in (module._parameters, module._buffers):
        yield from ((key, tensor) for key, tensor in kind.items() if tensor is not None)


def _marked(tensor: torch.Tensor) -> torch.Tensor:
    """Fill a tensor with the mark: a value that no initialiser would choose."""
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor.fill_(torch.nan)
    return tensor.zero_() if tensor.dtype is torch.bool else tensor.fill_(_least(tensor.dtype))


def _has_mark(tensor: torch.Tensor) -> bool:
    if tensor.is_floating_point() or tensor.is_complex():
        return bool(tensor.isnan().any())
    if tensor.dtype is torch.bool:
        return tensor._version == 1
    return bool((tensor == _least(tensor.dtype)).any())


def _least(dtype: torch.dtype) -> int:
    """Return the mark of an integer dtype: its minimum, or the maximum if unsigned (zero is likely)."""
    limits = torch.iinfo(dtype)
    return int(limits.min or limits.max)
