"""A parameter at rest (a DTensor for the optimizer) and in the step (a leaf for forward and backward).

The leaf is a plain local tensor that autograd accumulates into.  If the plan stores a parameter as the
step uses it, the leaf shares the DTensor's storage.  Otherwise it is gathered before the first forward
after every update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from autopar.errors import InputError
from autopar.plans.hops import Hop
from autopar.runtime import _torch
from autopar.runtime.padded_layout import PaddedLayout
from autopar.runtime.shard_layout import ShardLayout
from autopar.runtime.updates import refuse_data, update_locally


def unmarked(gradient: DTensor) -> DTensor:
    """Return a gradient as it is; ranks of pipeline stages mark theirs."""
    return gradient


class Touched(Enum):
    """Effect of the running backward on a gradient: whether its failure would lose earlier sums."""

    NOT = "nothing"
    KEEPS = "there was none, or it is still there"
    LOSES = "it adds to a sum of earlier backwards, in place"


@dataclass(eq=False)
class ShardedParameter:
    """One parameter on this rank.

    `entry` converts the part at rest to the padded part in the step.

    `marked` returns a new gradient as the user sees it.

    `pending`: the leaf's gradient holds sums that are not synchronised yet.  `p.grad` shows them, and
    `base` is the synchronised gradient that they will be added to.

    `saved` is `p.grad` as the running backward found it.  `lost` is a gradient that a failed backward
    corrupted.
    """

    name: str
    parameter: nn.Parameter
    leaf_shape: tuple[int, ...]
    leaf_dtype: torch.dtype
    hops: tuple[Hop, ...]
    pieces: ShardLayout
    entry: PaddedLayout
    reduces_low: bool = False
    """Whether its gradient is summed in the dtype of the leaf, which may be lower than that at rest."""
    marked: Callable[[DTensor], DTensor] = unmarked
    leaf: torch.Tensor = field(init=False)
    pending: bool = False
    base: torch.Tensor | None = None
    shown: torch.Tensor | None = None
    shown_version: int = 0
    memory: int = field(init=False)
    """Identity of the parameter's storage as torch reports it; assigning ``p.data`` changes it."""
    touched: Touched = field(default=Touched.NOT, init=False)
    saved: torch.Tensor | None = field(default=None, init=False)
    saved_version: int = field(default=0, init=False)
    lost: torch.Tensor | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.leaf = self.new_leaf()
        self.memory = _torch.storage_of(self.parameter)
        update_locally(self.parameter, self.name)

    @property
    def local(self) -> torch.Tensor:
        """The local shard at rest."""
        assert isinstance(self.parameter, DTensor)
        return _torch.local_of(self.parameter)

    @property
    def shares_storage(self) -> bool:
        """Whether the leaf shares the storage of the local shard at rest."""
        same = self.leaf_dtype == self.local.dtype and self.entry.is_plain
        return same and not any(hop.gathers for hop in self.hops)

    def new_leaf(self) -> torch.Tensor:
        """Return a leaf over the storage at rest, or an empty one to gather into."""
        if self.shares_storage:
            leaf = self.local.detach()
        else:
            leaf = torch.empty(self.leaf_shape, dtype=self.leaf_dtype, device=self.local.device)
        leaf.requires_grad_(self.parameter.requires_grad)
        if leaf.requires_grad and self.leaf_dtype != self.summed_dtype:
            leaf.grad_dtype = self.summed_dtype  # in which microbatches accumulate
        return leaf

    @property
    def summed_dtype(self) -> torch.dtype:
        """The dtype in which gradients of microbatches and of ranks are summed."""
        return self.leaf_dtype if self.reduces_low else self.local.dtype

    @property
    def rests_in_step(self) -> bool:
        """Whether the gradient at rest can stay in memory as a slice of the gradient in the step."""
        return self.entry.exchange is None

    def room(self, ranks: int, part: torch.Tensor, is_last: bool) -> torch.Tensor:
        """Return the buffer that parts of `ranks` ranks are gathered into.

        It is the leaf itself for the last hop, if the gathered order is the leaf's memory order.
        """
        if is_last and (view := self._uncounted()).is_contiguous():
            return view
        return part.new_empty((ranks, *part.shape))

    def fill(self, parts: torch.Tensor) -> None:
        """Set the leaf to the gathered parts, which may already be in its memory."""
        view = self._uncounted()
        if parts.data_ptr() != view.data_ptr():
            view.copy_(parts.reshape(view.shape))

    def _uncounted(self) -> torch.Tensor:
        """Return the leaf's pieces with a version counter of their own.

        A backward may still be to come that saved the leaf: gathering equal values must not fail it.
        `Leaves.writes_shown` tells it about values that did change.
        """
        return self.pieces.view(self.leaf.data)

    @property
    def version(self) -> tuple[int, int]:
        """Version counters that change with every write to the parameter or its local shard."""
        return self.parameter._version, self.local._version

    def is_current(self) -> bool:
        """Whether a leaf that shares the shard's storage still does (tensors may be swapped)."""
        return not self.shares_storage or self.leaf.data_ptr() == self.local.data_ptr()

    def as_gradient(self, local: torch.Tensor) -> torch.Tensor:
        """Return a DTensor over this local tensor, laid out like the parameter.

        It has its own version counter, separate from that of the buffer it is a view of.
        """
        assert isinstance(self.parameter, DTensor)
        return self.marked(_torch.dtensor(local.data, self.parameter._spec))

    def reconcile(self) -> None:
        """Check what the user did to `p.grad` since unsynchronised sums were shown there.

        If it was set to None or zeroed, the sums are dropped; other changes raise `InputError`.
        """
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
            f"The gradient of {self.name!r} {how} while it was a sum of this rank's microbatches "
            "alone (no_sync): other ranks' parts are still to be added. Change gradients after "
            "a backward outside no_sync(), or set them to None (zero_grad()) to drop the sum."
        )

    def drop(self) -> None:
        """Discard sums that have not been synchronised."""
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
        """Return the local part of the gradient that is already summed over all replicas, if any."""
        return self.base if self.pending else self._local(self.parameter.grad)

    def included(self) -> torch.Tensor | None:
        """Return the local part of the sum of earlier backwards, as the running backward found it."""
        return self.base if self.pending else self._local(self.saved)

    def _local(self, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Return this rank's part of a gradient set elsewhere; redistribute it if its layout differs."""
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
        """Record that the running backward made a gradient; `keeps`: earlier sums stay intact."""
        if self.touched is Touched.NOT:
            self.saved = self.shown if self.pending else self.parameter.grad
            self.saved_version = 0 if self.saved is None else self._version(self.saved)
            is_lost = self.saved is not None and not keeps
            self.touched = Touched.LOSES if is_lost else Touched.KEEPS

    def _beside(self) -> torch.Tensor | None:
        """Return a gradient that reached the parameter itself meanwhile (a loss term on the weights)."""
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
        # Writes through the DTensor bump its version, direct writes to the local tensor that one's.
        part = _torch.local_of(gradient) if isinstance(gradient, DTensor) else gradient
        return gradient._version + part._version

    def settle(self, total: torch.Tensor) -> None:
        """Set the synchronised gradient to `total` plus the earlier one."""
        before = self.synchronised()
        if before is not None:
            total = total.add_(before.to(total.dtype))
        self._set(total)

    def accumulate(self, total: torch.Tensor) -> None:
        """Add `total`, in whatever dtype, to the synchronised gradient, in its memory if it has any."""
        before, parameter = self.parameter.grad, self.parameter
        assert isinstance(parameter, DTensor)
        if (
            self.pending
            or not isinstance(before, DTensor)
            or not _torch.laid_out_alike(before, parameter)
        ):
            self.settle(total.to(self.local.dtype))
        else:
            _torch.local_of(before).add_(total)

    def replace(self, total: torch.Tensor) -> None:
        """Set the synchronised gradient to `total`, which includes the earlier one."""
        if (beside := self._beside()) is not None:
            total = total.add_(beside.to(total.dtype))
        self._set(total)

    def _set(self, total: torch.Tensor) -> None:
        self.drop()
        self.parameter.grad = made = self.as_gradient(total)
        if self.touched is Touched.LOSES:
            self.saved, self.saved_version = made, self._version(made)

    def untouch(self) -> None:
        """Reset the record of the running backward, which has ended."""
        self.touched, self.saved = Touched.NOT, None

    def abandon(self) -> None:
        """Undo the effects of a failed backward, or mark sums of earlier backwards as lost."""
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
                # The user cleared it in place since, but sums may have been written over the zeros.
                self.parameter.grad = self.as_gradient(torch.zeros_like(self.local))
        self.untouch()

    def refuse_lost(self) -> None:
        """Raise `InputError` while `p.grad` is a gradient that lacks sums of earlier backwards."""
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
    """Raise `InputError` for gradient hooks on parameters: autograd would never call them."""
    for slot in slots:
        if _torch.has_gradient_hooks(slot.parameter):
            raise InputError(
                f"{slot.name} has a gradient hook, which is never called: gradients are summed "
                "over the ranks in buckets, and put into .grad when the backward ends. Remove "
                "the hook, and change parameter.grad between backward and optimizer.step() "
                "instead."
            )


def refuse_other_data(slots: Iterable[ShardedParameter]) -> None:
    """Raise `InputError` after ``p.data = ...``, which does not change a DTensor's local tensor."""
    now = {slot.name: _torch.storage_of(slot.parameter) for slot in slots}
    assigned = [slot for slot in slots if slot.memory != now[slot.name]]
    for slot in assigned:
        slot.memory = now[slot.name]  # raise only once: the shards still have their values
    if assigned:
        refuse_data(assigned[0].name)
