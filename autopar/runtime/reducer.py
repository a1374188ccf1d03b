"""Gradient synchronisation: buckets in the order in which a backward is expected to fill them.

A bucket starts its collective as soon as it is full and all buckets before it have started, so every
rank issues collectives in the same order whatever order its hooks arrive in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from weakref import ref

import torch

from autopar.errors import InputError
from autopar.plans.buckets import buckets
from autopar.runtime import _torch
from autopar.runtime.bucket import Bucket
from autopar.runtime.context import Axes
from autopar.runtime.padded_layout import kept_here
from autopar.runtime.sharded_parameter import ShardedParameter


class Reducer:
    """Watches the leaves of all slots and sets the parameters' gradients when a backward ends."""

    def __init__(
        self,
        slots: Sequence[ShardedParameter],
        axes: Axes,
        on_synchronised: Callable[[], None],
        shares: int,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """`shares`: gradients make so many buckets at least.

        `on_failure` hears, before another one runs, of a backward that did not come to its end.
        """
        self._axes, self._on_synchronised, self._on_failure = axes, on_synchronised, on_failure
        self._every = tuple(slots)
        self._slots = [slot for slot in slots if slot.parameter.requires_grad]
        travelling = [slot for slot in self._slots if slot.hops or slot.entry.exchange]
        self._alone = [slot for slot in self._slots if not (slot.hops or slot.entry.exchange)]
        backward = {id(slot): place for place, slot in enumerate(reversed(travelling))}
        groups = sorted(
            in_buckets(reversed(travelling), shares),
            key=lambda group: backward[id(group[-1])],
        )
        self.buckets = [Bucket(g, axes, g[0].local.dtype) for g in groups]
        self._where = {
            id(slot): (bucket, number)
            for bucket in self.buckets
            for number, slot in enumerate(bucket.slots)
        }
        self.synchronises = True
        self._running: int | None = None
        """The number of the backward that is running, or that failed."""
        self._launched = 0
        self._hooks = [self._watch(place) for place in range(len(self._slots))]

    def _watch(self, place: int) -> Callable[[], None]:
        """Autograd holds the hook where the garbage collector does not see it: it holds nothing.

        A loss that is still there holds the reducer, so that its backward finds it.
        """
        weak = ref(self)

        def arrived(_: torch.Tensor) -> None:
            reducer = weak()
            if reducer is None:
                raise InputError(
                    "This backward comes to parameters of a parallel model that was dropped. Keep the "
                    "model until the backward of its last loss is done."
                )
            reducer._arrived(reducer._slots[place])

        handle = self._slots[place].leaf.register_post_accumulate_grad_hook(arrived)
        return handle.remove  # type: ignore[no-any-return]

    def rewatch(self) -> None:
        """Leaves were replaced."""
        for remove in self._hooks:
            remove()
        self._hooks = [self._watch(place) for place in range(len(self._slots))]

    @property
    def has_failed(self) -> bool:
        """Whether a backward began and did not come to its end."""
        return self._running not in (None, _torch.backward_number())

    def abandon(self) -> None:
        """Forget a backward that failed, on all ranks alike: all is as it was before."""
        for place, bucket in enumerate(self.buckets):
            bucket.abandon(place < self._launched)
        for slot in self._slots:
            slot.abandon()
        self._running, self._launched = None, 0

    def refuse_lost(self) -> None:
        """Raise `InputError` while a gradient is there that a failed backward spoiled."""
        for slot in self._slots:
            slot.refuse_lost()

    def before_forward(self, synchronises: bool) -> None:
        """The next backward synchronises, or only adds up on this rank."""
        self.synchronises = synchronises
        for slot in self._slots:
            slot.reconcile()

    def begin(self) -> None:
        """A backward runs; it may be the first that it is heard of here."""
        number = _torch.backward_number()
        if self._running == number:
            return
        if self._running is not None:
            self._on_failure()
        for slot in self._slots:
            slot.reconcile()
        self._running, self._launched = number, 0
        _torch.after_backward(self._finish)

    def zero_grad(self) -> None:
        """Drop every gradient, synchronised or not."""
        for slot in self._every:
            slot.drop()
            slot.parameter.grad = None

    def _arrived(self, slot: ShardedParameter) -> None:
        self.begin()
        if not self.synchronises:
            slot.touch(keeps=not slot.pending)
            return
        if id(slot) not in self._where:
            if slot.leaf.grad is not None:  # autograd comes here with nothing, too
                self._arrived_alone(slot)
        else:
            bucket, number = self._where[id(slot)]
            bucket.put(number)
            if not bucket.waiting:
                self._launch_full()

    def _arrived_alone(self, slot: ShardedParameter) -> None:
        """It waits for the end where nothing is added to it: until then the backward may fail."""
        if slot.synchronised() is None:
            slot.touch(keeps=not slot.pending)
        else:
            self._settle_alone(slot)

    def _launch_full(self) -> None:
        while self._launched < len(self.buckets) and not self.buckets[self._launched].waiting:
            self.buckets[self._launched].launch()
            self._launched += 1

    def _finish(self) -> None:
        if self.synchronises:
            self._synchronise()
        else:
            for slot in self._slots:
                self._show(slot)
        for slot in self._slots:
            slot.untouch()
        self._running = None

    def _synchronise(self) -> None:
        for bucket in self.buckets[self._launched :]:
            for number in sorted(bucket.waiting):
                bucket.put(number)
        self._launch_full()
        for bucket in self.buckets:
            bucket.finish()
        for slot in self._alone:
            if slot.leaf.grad is not None:  # of earlier backwards, which did not synchronise
                self._settle_alone(slot)
        self._on_synchronised()

    def _settle_alone(self, slot: ShardedParameter) -> None:
        """Nothing is summed: it is added at once, so that no two of a model's gradients are there."""
        assert slot.leaf.grad is not None
        slot.touch(keeps=False)
        slot.settle(slot.entry.cut(slot.leaf.grad.to(slot.local.dtype)))

    def _show(self, slot: ShardedParameter) -> None:
        """This rank's sums so far; what other ranks will contribute is missing."""
        if slot.leaf.grad is None:
            return
        part = slot.pieces.view(slot.leaf.grad.contiguous())
        for hop, size in zip(
            reversed([hop for hop in slot.hops if hop.gathers]), slot.pieces.leading, strict=True
        ):
            assert size == hop.ranks
            part = part[self._axes[hop.axis].rank]
        slot.show_pending(kept_here(slot.entry, part.reshape(slot.entry.shape), self._axes))


def in_buckets(
    slots: Iterable[ShardedParameter], shares: int = 1
) -> Iterator[list[ShardedParameter]]:
    """Slots of equal hops and dtypes together, in order, up to the bucket size."""
    groups: dict[object, list[ShardedParameter]] = {}
    for slot in slots:
        over = None if slot.entry.exchange is None else slot.entry.exchange.axis
        key = (slot.hops, slot.leaf_dtype, slot.local.dtype, slot.pieces.leading, over)
        groups.setdefault(key, []).append(slot)
    for group in groups.values():
        sizes = [slot.leaf.numel() * slot.leaf.element_size() for slot in group]
        for places in buckets(sizes, shares=shares):
            yield [group[place] for place in places]


__all__ = ["Reducer", "in_buckets"]
