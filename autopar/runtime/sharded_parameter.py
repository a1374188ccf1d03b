"""Parameters at rest and in the step: a DTensor for the optimizer, a leaf for forward and backward.

The leaf is a plain local tensor that autograd accumulates into.  Where the plan stores a parameter
as the step uses it, the leaf shares the DTensor's storage; otherwise it is gathered before the first
forward after every update.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from autopar.errors import InputError
from autopar.runtime import _torch
from autopar.runtime.padded_layout import PaddedLayout
from autopar.runtime.shard_layout import Hop, ShardLayout
from autopar.runtime.updates import update_locally


class Touched(Enum):
    """What a running backward did to a parameter's gradient: could it fail without a loss?"""

    NOT = "nothing"
    KEEPS = "there was none, or it is still there"
    LOSES = "it adds to a sum of earlier backwards, in place"


@dataclass(eq=False)
class ShardedParameter:
    """One parameter on this rank.

    `entry` says how the stored part becomes part of the step, where sizes are padded.

    `pending`: the leaf's gradient holds sums that have not been synchronised yet; `p.grad` shows
    them, and `base` is the synchronised gradient they will be added to.

    `saved` is `p.grad` as the running backward found it; `lost` is one that a failed backward spoiled.
    """

    name: str
    parameter: nn.Parameter
    leaf_shape: tuple[int, ...]
    leaf_dtype: torch.dtype
    hops: tuple[Hop, ...]
    pieces: ShardLayout
    entry: PaddedLayout
    gradient_kind: type[DTensor] = DTensor
    leaf: torch.Tensor = field(init=False)
    pending: bool = False
    base: torch.Tensor | None = None
    shown: torch.Tensor | None = None
    shown_version: int = 0
    gathered_version: tuple[int, int] | None = None
    memory: int = field(init=False)
    """Which storage torch thinks the parameter has: another one once ``p.data`` was assigned."""
    touched: Touched = field(default=Touched.NOT, init=False)
    saved: torch.Tensor | None = field(default=None, init=False)
    saved_version: int = field(default=0, init=False)
    lost: torch.Tensor | None = field(default=None, init=False)

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
        """A DTensor laid out like the parameter over this local tensor.

        What is written to it counts in a version of its own, not in that of what it lies in.
        """
        assert isinstance(self.parameter, DTensor)
        return _torch.dtensor(local.data, self.parameter._spec, self.gradient_kind)

    def reconcile(self) -> None:
        """What the user did to `p.grad` since sums were shown there: cleared, they are gone."""
        if not self.pending:
            return
        gradient = self.parameter.grad
        if gradient is None:
            self.drop()
        elif gradient is not self.shown:
            raise InputError(self._changed("was replaced"))
        elif self._version(gradient) != self.shown_version:
            if gradient.count_nonzero():
                raise InputError(self._changed("was changed in place"))
            self.drop()

    def _changed(self, how: str) -> str:
        return (
            f"The gradient of {self.name!r} {how} while it was a sum of this rank's microbatches alone "
            "(no_sync): other ranks' parts are still to be added. Change gradients behind a backward "
            "outside no_sync(), or set them to None (zero_grad()) to drop the sum."
        )

    def drop(self) -> None:
        """Forget sums that have not been synchronised."""
        self.leaf.grad = None
        self.pending, self.base, self.shown = False, None, None

    def show_pending(self, own_part: torch.Tensor) -> None:
        """Show this rank's unsynchronised sums in `p.grad`, as DDP does."""
        if self.pending:
            self.base = _sum(self.base, self._beside())
        else:
            self.base = self.synchronised()
            self.pending = True
        self.shown = self.as_gradient(own_part)
        self.shown_version = self._version(self.shown)
        self.parameter.grad = self.shown

    def synchronised(self) -> torch.Tensor | None:
        """The local part of the gradient that is already the same sum on every replica."""
        return self.base if self.pending else self._local(self.parameter.grad)

    def _local(self, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """This rank's part of a gradient that came from elsewhere, perhaps laid out otherwise."""
        if gradient is None:
            return None
        assert isinstance(self.parameter, DTensor)
        if not isinstance(gradient, DTensor):
            raise InputError(
                f"The gradient of {self.name!r} was set to a plain tensor. Set it to a DTensor like the "
                "parameter: torch.distributed.tensor.distribute_tensor(gradient, p.device_mesh, "
                "p.placements)."
            )
        if not _torch.laid_out_alike(gradient, self.parameter):
            gradient = gradient.redistribute(placements=self.parameter.placements)
        return _torch.local_of(gradient)

    def touch(self, keeps: bool) -> None:
        """The running backward has its gradient; `keeps`: what was summed before stays what it is."""
        if self.touched is Touched.NOT:
            self.saved = self.shown if self.pending else self.parameter.grad
            self.saved_version = 0 if self.saved is None else self._version(self.saved)
            is_lost = self.saved is not None and not keeps
            self.touched = Touched.LOSES if is_lost else Touched.KEEPS

    def _beside(self) -> torch.Tensor | None:
        """What came to the parameter itself meanwhile: a penalty on weights beside the loss."""
        found = self.parameter.grad
        if found is None or found is not (self.shown if self.pending else self.saved):
            return self._local(found)
        if self._version(found) != (self.shown_version if self.pending else self.saved_version):
            raise InputError(
                f"A loss is a function of {self.name!r} itself (a penalty on weights), and its gradient "
                "came while those of earlier backwards were being added up. Call zero_grad() before "
                "each backward of such a loss, and none of them inside no_sync()."
            )
        return None

    @staticmethod
    def _version(gradient: torch.Tensor) -> int:
        # What is written through the DTensor counts there, what is written beside it in its part.
        part = _torch.local_of(gradient) if isinstance(gradient, DTensor) else gradient
        return gradient._version + part._version

    def settle(self, total: torch.Tensor) -> None:
        """Set the synchronised gradient, added to what was there."""
        before = self.synchronised()
        if before is not None:
            total = total.add_(before.to(total.dtype))
        self._set(total)

    def replace(self, total: torch.Tensor) -> None:
        """Set the synchronised gradient; what was there before is part of it."""
        if (beside := self._beside()) is not None:
            total = total.add_(beside.to(total.dtype))
        self._set(total)

    def _set(self, total: torch.Tensor) -> None:
        self.drop()
        self.parameter.grad = made = self.as_gradient(total)
        if self.touched is Touched.LOSES:
            self.saved, self.saved_version = made, self._version(made)

    def untouch(self) -> None:
        """The backward has ended."""
        self.touched, self.saved = Touched.NOT, None

    def abandon(self) -> None:
        """The backward that touched it failed: as before it, unless sums of earlier ones are lost."""
        found = self.parameter.grad
        if self.touched is Touched.KEEPS:
            self.leaf.grad, self.parameter.grad = None, self.saved
        elif self.touched is Touched.LOSES:
            self.drop()
            self.lost = found
            if (
                found is not None
                and found is self.saved
                and self._version(found) != self.saved_version
            ):
                # Somebody cleared it in place since; what was summed may have been written over that.
                self.parameter.grad = self.as_gradient(torch.zeros_like(self.local))
        self.untouch()

    def refuse_lost(self) -> None:
        """Raise `InputError` as long as a gradient is there that lacks sums of earlier backwards."""
        if self.lost is not None and self.parameter.grad is self.lost:
            raise InputError(
                f"A backward failed midway, and the gradient of {self.name!r} with it, which was the "
                "sum of earlier backwards. Call zero_grad(), and add up this batch's gradients from the "
                "start."
            )
        self.lost = None


def _sum(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


def refuse_hooks(slots: Iterable[ShardedParameter]) -> None:
    """Raise `InputError` for hooks on parameters: autograd never reaches them."""
    for slot in slots:
        if _torch.has_gradient_hooks(slot.parameter):
            raise InputError(
                f"{slot.name} has a gradient hook, which is never called: gradients are summed over the "
                "ranks in buckets, and put into .grad when the backward ends. Remove the hook, and do "
                "what it does to parameter.grad between backward and optimizer.step()."
            )


def refuse_other_data(slots: Iterable[ShardedParameter]) -> None:
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
