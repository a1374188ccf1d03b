"""Gathers that are not kept: what an operator would save of a gathered tensor is saved as the shard.

While the forward runs, gathered tensors are remembered by their storage.  When autograd saves a
tensor that lives in such a storage (the tensor itself or a view of it), it is given a ticket instead;
when the backward asks for it, the gather is repeated, once for all operators that hold the ticket.
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
Gather = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class Gathered:
    """How to make a gathered tensor again; holds its result only while somebody still waits for it."""

    source: Any
    gather: Gather
    waiting: int = 0
    result: torch.Tensor | None = None

    def ticket(self, tensor: torch.Tensor) -> Ticket:
        """A place holder for a view of the gathered tensor."""
        self.waiting += 1
        return Ticket(self, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def again(self) -> torch.Tensor:
        """The gathered tensor, gathered again the first time it is asked for."""
        if self.result is None:
            with torch.no_grad():
                self.result = self.gather(_redeemed(self.source))
        result = self.result
        self.waiting -= 1
        if self.waiting <= 0:
            self.result = None
        return result


@dataclass(frozen=True)
class Ticket:
    """What autograd holds instead of the gathered tensor."""

    gathered: Gathered
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def redeem(self) -> torch.Tensor:
        """The saved tensor."""
        return self.gathered.again().as_strided(self.shape, self.stride, self.offset)


@dataclass(frozen=True)
class Shard:
    """What is gathered again: a rank's part of a weight, at the version that the forward saw."""

    tensor: torch.Tensor
    version: int


Scope = dict[int, tuple[torch.Tensor, Gathered]]
"""Gathered tensors by their storage."""


@dataclass
class _Forward:
    """The gathered tensors of the blocks that are running now, innermost last.

    `waiting` are those that came with others, which no block has asked for yet.
    """

    scopes: list[Scope] = field(default_factory=list)
    waiting: Scope = field(default_factory=dict)

    def find(self, tensor: torch.Tensor) -> Gathered | None:
        """The entry whose storage this tensor lives in."""
        key = _storage(tensor)
        for scope in (*reversed(self.scopes), self.waiting):
            if key in scope:
                return scope[key][1]
        return None

    def leaving(self, results: T) -> T:
        """Hand the gathered tensors among a block's results to the block around it."""
        *_, outer, inner = self.scopes
        for tensor in results if isinstance(results, tuple) else (results,):
            if isinstance(tensor, torch.Tensor) and _storage(tensor) in inner:
                outer[_storage(tensor)] = inner[_storage(tensor)]
        return results


_FORWARD: ContextVar[_Forward | None] = ContextVar("forward", default=None)


def packed(tensor: torch.Tensor) -> Any:
    """What is kept of a tensor for the backward.

    Never the tensor itself: an operator that saves its own result would hold itself, through C++,
    where the garbage collector does not see it.
    """
    forward = _FORWARD.get()
    entry = None if forward is None else forward.find(tensor)
    return tensor.detach() if entry is None else entry.ticket(tensor)


def unpacked(kept: Any) -> torch.Tensor:
    """The tensor."""
    return kept.redeem() if isinstance(kept, Ticket) else kept


@contextmanager
def regathering() -> Iterator[None]:
    """The forward of a module with regathered tensors."""
    forward = _Forward()
    token = _FORWARD.set(forward)
    try:
        with torch.autograd.graph.saved_tensors_hooks(packed, unpacked), scope():
            yield
    finally:
        _FORWARD.reset(token)


@contextmanager
def scope() -> Iterator[Callable[[T], T]]:
    """One block: what it gathers is forgotten when it returns, save what it passes on.

    Yields what its results must go through: gathered ones belong to the block around it from then on.
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


def remember(made: torch.Tensor, source: torch.Tensor, gather: Gather) -> None:
    """Note that `made` can be made from `source` again; it stays alive until its block returns."""
    forward = _FORWARD.get()
    if forward is None or not torch.is_grad_enabled():
        return
    entry = Gathered(_kept(source, forward), gather)
    forward.scopes[-1][_storage(made)] = (made, entry)


@dataclass
class _Together:
    """Gathers that are repeated together: the first that is asked for brings the others."""

    sources: list[Any]
    gather: Callable[[list[torch.Tensor]], list[torch.Tensor]]
    results: dict[int, torch.Tensor] = field(default_factory=dict)

    def take(self, place: int) -> torch.Tensor:
        """One result; the others wait for their turn."""
        if place not in self.results:
            self.results = dict(enumerate(self.gather([_redeemed(s) for s in self.sources])))
        return self.results.pop(place)


def remember_together(
    made: Sequence[torch.Tensor],
    sources: Sequence[torch.Tensor],
    gather: Callable[[list[torch.Tensor]], list[torch.Tensor]],
) -> None:
    """Note that these tensors can be made from their sources again, in one collective.

    Each belongs to the block that asks for it (`taken`), whoever asked first.
    """
    forward = _FORWARD.get()
    if forward is None or not made or not torch.is_grad_enabled():
        return
    together = _Together([_kept(source, forward) for source in sources], gather)
    for place, tensor in enumerate(made):

        def again(_: Any, place: int = place) -> torch.Tensor:
            return together.take(place)

        forward.waiting[_storage(tensor)] = (tensor, Gathered(None, again))


def taken(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that came with others, now that the innermost block has it."""
    forward = _FORWARD.get()
    entry = None if forward is None else forward.waiting.pop(_storage(tensor), None)
    if forward is not None and entry is not None:
        forward.scopes[-1][_storage(tensor)] = entry
    return tensor


def _kept(source: torch.Tensor, forward: _Forward) -> Any:
    """What stands for a source until the backward: the shard, or a ticket if it is a gather itself."""
    shared = forward.find(source)
    return Shard(source.detach(), source._version) if shared is None else shared.ticket(source)


def _redeemed(kept: Ticket | Shard | None) -> Any:
    """The source; raise `InputError` where it is not what it was in the forward."""
    if not isinstance(kept, Shard):
        return None if kept is None else kept.redeem()
    if kept.tensor._version != kept.version:
        raise InputError(
            f"Weights of shape {tuple(kept.tensor.shape)} on this rank were changed in place between a "
            "forward and its backward (optimizer.step(), or a write under torch.no_grad()), which needs "
            "them as they were. Call loss.backward() before the update, or the forward again behind it."
        )
    return kept.tensor


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
