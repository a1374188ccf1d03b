"""Regathering: where an operator would save a gathered tensor for the backward, the shard is kept.

While the forward runs, gathered tensors are remembered by their storage.  When autograd saves a
tensor in such a storage (the tensor itself or a view of it), it gets a ticket instead.  When the
backward unpacks it, the gather is repeated, once for all operators that hold a ticket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from autopar.errors import InputError

T = TypeVar("T")
Start = Callable[[list[torch.Tensor]], Callable[[], list[torch.Tensor]]]


@dataclass(eq=False)
class Gathers:
    """Gathers that are repeated together, when the first of them is needed.

    `start` starts them and returns what finishes them.  `before`: those that the backward needs next,
    which start once these have arrived.
    """

    sources: list[Any]
    start: Start
    before: Gathers | None = None
    waiting: int = 0
    """Tickets that are outstanding."""
    finish: Callable[[], list[torch.Tensor]] | None = None
    results: dict[int, torch.Tensor] = field(default_factory=dict)

    def begin(self) -> None:
        """Start them ahead of their use, unless that has been done, or no ticket is outstanding."""
        if self.finish is None and not self.results and self.waiting > 0:
            self.finish = self._started()

    def take(self, place: int) -> torch.Tensor:
        """Return one result; the others are kept until they are taken."""
        if place not in self.results:
            finish, self.finish = self.finish or self._started(), None
            with torch.no_grad():
                self.results = dict(enumerate(finish()))
            if self.before is not None:
                self.before.begin()
        return self.results.pop(place)

    def _started(self) -> Callable[[], list[torch.Tensor]]:
        with torch.no_grad():
            return self.start([_redeemed(source) for source in self.sources])


@dataclass
class Gathered:
    """A tensor that can be gathered again; the result is kept only while tickets are outstanding."""

    gathers: Gathers
    place: int
    waiting: int = 0
    result: torch.Tensor | None = None

    def ticket(self, tensor: torch.Tensor) -> Ticket:
        """Return a placeholder for a view of the gathered tensor."""
        self.waiting += 1
        self.gathers.waiting += 1
        return Ticket(self, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def again(self) -> torch.Tensor:
        """Return the gathered tensor; the first call repeats the gather."""
        if self.result is None:
            self.result = self.gathers.take(self.place)
        result = self.result
        self.waiting -= 1
        self.gathers.waiting -= 1
        if self.waiting <= 0:
            self.result = None
        return result


@dataclass(frozen=True)
class Ticket:
    """The placeholder that autograd saves instead of the gathered tensor."""

    gathered: Gathered
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def redeem(self) -> torch.Tensor:
        """Return the saved tensor."""
        return self.gathered.again().as_strided(self.shape, self.stride, self.offset)


@dataclass(frozen=True)
class Shard:
    """The input of a repeated gather: a rank's part of a weight, at the version of the forward."""

    tensor: torch.Tensor
    version: int


Scope = dict[int, tuple[torch.Tensor, Gathered]]
"""Gathered tensors by their storage."""


@dataclass
class _Forward:
    """The gathered tensors of the blocks that are running now, innermost last."""

    scopes: list[Scope] = field(default_factory=list)

    def find(self, tensor: torch.Tensor) -> Gathered | None:
        """Return the entry with this tensor's storage, if any."""
        key = _storage(tensor)
        for scope in reversed(self.scopes):
            if key in scope:
                return scope[key][1]
        return None

    def leaving(self, results: T) -> T:
        """Move the gathered tensors among a block's results to the scope of the enclosing block."""
        *_, outer, inner = self.scopes
        for tensor in results if isinstance(results, tuple) else (results,):
            if isinstance(tensor, torch.Tensor) and _storage(tensor) in inner:
                outer[_storage(tensor)] = inner[_storage(tensor)]
        return results


_FORWARD: ContextVar[_Forward | None] = ContextVar("forward", default=None)


def packed(tensor: torch.Tensor) -> Any:
    """Return what is kept of a tensor for the backward: a ticket, or the tensor detached.

    Never the tensor itself: an operator that saves its own result would form a reference cycle through
    C++, which the garbage collector does not see.
    """
    forward = _FORWARD.get()
    entry = None if forward is None else forward.find(tensor)
    return tensor.detach() if entry is None else entry.ticket(tensor)


def unpacked(kept: Any) -> torch.Tensor:
    """Return the tensor for what `packed` kept."""
    return kept.redeem() if isinstance(kept, Ticket) else kept


@contextmanager
def regathering() -> Iterator[None]:
    """Run the forward of a module with regathered tensors inside."""
    forward = _Forward()
    token = _FORWARD.set(forward)
    try:
        with torch.autograd.graph.saved_tensors_hooks(packed, unpacked), scope():
            yield
    finally:
        _FORWARD.reset(token)


@contextmanager
def scope() -> Iterator[Callable[[T], T]]:
    """Scope of one block: its gathered tensors are released when it returns, except its results.

    Yields a function that its results must pass through: it moves gathered ones to the enclosing block.
    """
    forward = _FORWARD.get()
    if forward is None:
        yield lambda results: results
        return
    forward.scopes.append({})
    try:
        yield forward.leaving
    finally:
        forward.scopes.pop()


def remember(
    made: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], start: Start
) -> Gathers | None:
    """Record that these tensors can be gathered from their sources again, in one collective.

    They stay alive until their block returns.  Return None where no backward follows.
    """
    forward = _FORWARD.get()
    if forward is None or not torch.is_grad_enabled():
        return None
    gathers = Gathers([_kept(source, forward) for source in sources], start)
    for place, tensor in enumerate(made):
        forward.scopes[-1][_storage(tensor)] = (tensor, Gathered(gathers, place))
    return gathers


def _kept(source: torch.Tensor, forward: _Forward) -> Any:
    """Return what is kept of a source: the shard, or a ticket if it was gathered itself."""
    shared = forward.find(source)
    return Shard(source.detach(), source._version) if shared is None else shared.ticket(source)


def _redeemed(kept: Ticket | Shard) -> torch.Tensor:
    """Return the source; raise `InputError` if it was modified since the forward."""
    if not isinstance(kept, Shard):
        return kept.redeem()
    if kept.tensor._version != kept.version:
        raise InputError(
            f"Weights of shape {tuple(kept.tensor.shape)} on this rank were changed in place between a "
            "forward and its backward (optimizer.step(), or a write under torch.no_grad()), which needs "
            "them as they were. Call loss.backward() before the update, or the forward again behind it."
        )
    return kept.tensor


def _storage(tensor: torch.Tensor) -> int:
    # Not its address, which all empty storages share.
    return int(tensor.untyped_storage()._cdata)
