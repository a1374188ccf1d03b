"""Parameters at rest and in the step: a DTensor for the optimizer, a leaf for forward and backward.

The leaf is a plain local tensor that autograd accumulates into.  Where the plan stores a parameter
as the step uses it, the leaf shares the DTensor's storage; otherwise it is gathered before the first
forward after every update.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from autopar.errors import InputError
from autopar.runtime import _torch
from autopar.runtime.entry import Entry
from autopar.runtime.pieces import Hop, Pieces
from autopar.runtime.updates import update_locally


@dataclass(eq=False)
class Slot:
    """One parameter on this rank.

    `entry` says how the stored part becomes part of the step, where sizes are padded.

    `pending`: the leaf's gradient holds sums that have not been synchronised yet; `p.grad` shows
    them, and `base` is the synchronised gradient they will be added to.
    """

    name: str
    parameter: nn.Parameter
    leaf_shape: tuple[int, ...]
    leaf_dtype: torch.dtype
    hops: tuple[Hop, ...]
    pieces: Pieces
    entry: Entry
    gradient_kind: type[DTensor] = DTensor
    leaf: torch.Tensor = field(init=False)
    pending: bool = False
    base: torch.Tensor | None = None
    shown: torch.Tensor | None = None
    gathered_version: tuple[int, int] | None = None
    memory: int = field(init=False)
    """Which storage torch thinks the parameter has: another one once ``p.data`` was assigned."""

    def __post_init__(self) -> None:
        self.leaf = self.new_leaf()
        self.memory = _torch.storage_of(self.parameter)
        update_locally(self.parameter)

    @property
    def local(self) -> torch.Tensor:
        """The stored local tensor."""
        assert isinstance(self.parameter, DTensor)
        return _torch.local_of(self.parameter)

    @property
    def shares_storage(self) -> bool:
        """Whether the leaf is the stored tensor itself."""
        same = self.leaf_dtype == self.local.dtype and self.entry.is_plain
        return same and not any(hop.gathers for hop in self.hops)

    def new_leaf(self) -> torch.Tensor:
        """A leaf over the stored tensor's storage, or an empty one to be gathered into."""
        if self.shares_storage:
            leaf = self.local.detach()
        else:
            leaf = torch.empty(self.leaf_shape, dtype=self.leaf_dtype, device=self.local.device)
        leaf.requires_grad_(self.parameter.requires_grad)
        if leaf.requires_grad and self.leaf_dtype != self.local.dtype:
            leaf.grad_dtype = self.local.dtype  # microbatches add up as precisely as weights rest
        return leaf

    @property
    def rests_in_step(self) -> bool:
        """Whether what rests of a gradient is of this rank's part in the step, and may lie there."""
        return self.entry.exchange is None

    def room(self, ranks: int, part: torch.Tensor, is_last: bool) -> torch.Tensor:
        """Where parts of so many ranks are gathered: in the leaf, if all of it comes in its order."""
        if is_last and (view := self.pieces.view(self.leaf.detach())).is_contiguous():
            return view
        return part.new_empty((ranks, *part.shape))

    def fill(self, parts: torch.Tensor) -> None:
        """Set the leaf to what was gathered, which may be there."""
        view = self.pieces.view(self.leaf.detach())
        if parts.data_ptr() != view.data_ptr():
            view.copy_(parts.reshape(view.shape))
        self.gathered_version = self.version

    @property
    def version(self) -> tuple[int, int]:
        """Another one after every write, to the parameter or to what is stored of it here."""
        return self.parameter._version, self.local._version

    def is_current(self) -> bool:
        """Whether the leaf still shares the stored tensor's storage (tensors may be swapped)."""
        return not self.shares_storage or self.leaf.data_ptr() == self.local.data_ptr()

    def as_gradient(self, local: torch.Tensor) -> torch.Tensor:
        """A DTensor laid out like the parameter over this local tensor."""
        assert isinstance(self.parameter, DTensor)
        return _torch.dtensor(local, self.parameter._spec, self.gradient_kind)

    def reconcile(self) -> None:
        """The user cleared or replaced `p.grad` since sums were shown there: the sums are gone."""
        if self.pending and self.parameter.grad is not self.shown:
            self.drop()

    def drop(self) -> None:
        """Forget sums that have not been synchronised."""
        self.leaf.grad = None
        self.pending, self.base, self.shown = False, None, None

    def show_pending(self, own_part: torch.Tensor) -> None:
        """Show this rank's unsynchronised sums in `p.grad`, as DDP does."""
        if not self.pending:
            self.base = self.synchronised()
            self.pending = True
        self.shown = self.as_gradient(own_part)
        self.parameter.grad = self.shown

    def synchronised(self) -> torch.Tensor | None:
        """The local part of the gradient that is already the same sum on every replica."""
        if self.pending:
            return self.base
        gradient = self.parameter.grad
        if gradient is None:
            return None
        assert isinstance(gradient, DTensor)
        return _torch.local_of(gradient)

    def settle(self, total: torch.Tensor) -> None:
        """Set the synchronised gradient, added to what was there."""
        before = self.synchronised()
        if before is not None:
            total = total.add_(before.to(total.dtype))
        self.replace(total)

    def replace(self, total: torch.Tensor) -> None:
        """Set the synchronised gradient; what was there before is part of it."""
        self.drop()
        self.parameter.grad = self.as_gradient(total)


def refuse_hooks(slots: Iterable[Slot]) -> None:
    """Raise `InputError` for hooks on parameters: autograd never reaches them."""
    for slot in slots:
        if _torch.has_gradient_hooks(slot.parameter):
            raise InputError(
                f"{slot.name} has a gradient hook, which is never called: gradients are summed over the "
                "ranks in buckets, and put into .grad when the backward ends. Remove the hook, and do "
                "what it does to parameter.grad between backward and optimizer.step()."
            )


def refuse_other_data(slots: Iterable[Slot]) -> None:
    """Raise `InputError` after ``p.data = ...``, which torch forgets for a DTensor."""
    now = {slot.name: _torch.storage_of(slot.parameter) for slot in slots}
    assigned = [slot for slot in slots if slot.memory != now[slot.name]]
    for slot in assigned:
        slot.memory = now[slot.name]  # told once: the values are what they were
    if assigned:
        raise InputError(
            f"{assigned[0].name}.data was assigned, and the values are not the parameter's: the step "
            "computes with the shards that were there. Write into it instead, with torch.no_grad(): "
            "parameter.copy_(values); whole values go through parallel.load_state_dict."
        )
