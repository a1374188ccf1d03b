"""Gradient synchronisation in buckets, in the order in which a backward is expected to fill them.

A bucket starts its collective as soon as it is full and all buckets before it have started.  So every
rank issues collectives in the same order, whatever the order of its autograd hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from weakref import ref

import torch

from autopar.errors import InputError
from autopar.plans.buckets import grouped, in_backward
from autopar.plans.compressed_messages import compressed_hops
from autopar.request.compression import Compression
from autopar.runtime import _torch
from autopar.runtime.axes import Axes
from autopar.runtime.bucket import Bucket
from autopar.runtime.late import Late, Pending, ready
from autopar.runtime.padded_layout import kept_here
from autopar.runtime.sharded_parameter import ShardedParameter


class Reducer:
    """Hooks the leaves of all slots, and sets the parameters' gradients when a backward ends."""

    def __init__(
        self,
        slots: Sequence[ShardedParameter],
        axes: Axes,
        shares: int,
        on_failure: Callable[[], None] = lambda: None,
        on_begin: Callable[[bool], None] = lambda synchronises: None,
        compression: Compression | None = None,
    ) -> None:
        """`shares`: the gradients are cut into at least this many buckets.

        `on_failure` is called when a backward begins after one that did not finish, and
        `on_begin` for every backward.
        """
        self._axes, self._on_failure, self._on_begin = axes, on_failure, on_begin
        self._every = tuple(slots)
        self._slots = [slot for slot in slots if slot.parameter.requires_grad]
        travelling = [slot for slot in self._slots if slot.hops or slot.entry.exchange]
        self._alone = [slot for slot in self._slots if not (slot.hops or slot.entry.exchange)]
        groups = in_backward(travelling, in_buckets(reversed(travelling), shares, compression))
        self.buckets = [
            Bucket(g, axes, g[0].summed_dtype, compression_of(g[0], compression)) for g in groups
        ]
        self._where = {
            id(slot): (bucket, number)
            for bucket in self.buckets
            for number, slot in enumerate(bucket.slots)
        }
        self.synchronises = True
        self._running: int | None = None
        """Number of the backward that is running, or that failed; None if there is none."""
        self._launched = 0
        self._coming: list[tuple[ShardedParameter, Pending]] = []
        """Gradients that collectives of the running backward are still filling."""
        self._hooks = [self._watch(place) for place in range(len(self._slots))]

    def _watch(self, place: int) -> Callable[[], None]:
        """Register the hook of one leaf; return the function that removes it.

        The hook refers to the reducer weakly, as autograd holds hooks in C++, out of the garbage
        collector's sight.  A live loss holds the reducer strongly, so its backward finds it.
        """
        weak = ref(self)

        def arrived(_: torch.Tensor) -> None:
            reducer = weak()
            if reducer is None:
                raise InputError(
                    "This backward reaches parameters of a parallel model that was deleted. "
                    "Keep the model until the backward of its last loss is done."
                )
            reducer._arrived(reducer._slots[place])

        handle = self._slots[place].leaf.register_post_accumulate_grad_hook(arrived)
        return handle.remove  # type: ignore[no-any-return]

    def rewatch(self) -> None:
        """Register all hooks again after leaves were replaced."""
        for remove in self._hooks:
            remove()
        self._hooks = [self._watch(place) for place in range(len(self._slots))]

    @property
    def has_failed(self) -> bool:
        """Whether a backward began and did not finish."""
        return self._running not in (None, _torch.backward_number())

    def abandon(self) -> None:
        """Discard a backward that failed on all ranks, and restore the state before it."""
        for slot in self._slots:
            if slot.leaf.grad is not None:
                ready(slot.leaf.grad)
        self._coming = []
        for place, bucket in enumerate(self.buckets):
            bucket.abandon(place < self._launched)
        for slot in self._slots:
            slot.abandon()
        self._running, self._launched = None, 0

    def refuse_lost(self) -> None:
        """Raise `InputError` while a parameter has a gradient that a failed backward corrupted."""
        for slot in self._slots:
            slot.refuse_lost()

    def before_forward(self, synchronises: bool) -> None:
        """Set whether the next backward synchronises gradients or only accumulates on this rank."""
        self.synchronises = synchronises
        for slot in self._slots:
            slot.reconcile()

    def begin(self) -> None:
        """Prepare for the running backward; calls after the first of each backward do nothing."""
        number = _torch.backward_number()
        if self._running == number:
            return
        if self._running is not None:
            self._on_failure()
        for slot in self._slots:
            slot.reconcile()
        self._running, self._launched = number, 0
        self._on_begin(self.synchronises)
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
        gradient = slot.leaf.grad
        if isinstance(gradient, Late):
            self._take_coming(but=gradient.pending)
            self._coming.append((slot, gradient.pending))
            slot.touch(keeps=True)  # until it is taken
        else:
            self._take(slot)

    def _take_coming(self, but: Pending | None = None) -> None:
        """Take the gradients that collectives of the backward filled, but those of one collective.

        Such a collective is followed by the next one of its loop, which waits for it.  So the backward
        has gone on meanwhile, and all ranks take the same gradients at the same time.
        """
        came = [slot for slot, pending in self._coming if pending is not but]
        self._coming = [(slot, pending) for slot, pending in self._coming if pending is but]
        for slot in came:
            if slot.leaf.grad is not None:
                slot.leaf.grad = ready(slot.leaf.grad)
            slot.untouch()
            self._take(slot)

    def _take(self, slot: ShardedParameter) -> None:
        """Take a gradient that is there."""
        if id(slot) not in self._where:
            if slot.leaf.grad is not None:  # autograd also calls the hook without a gradient
                self._arrived_alone(slot)
        else:
            bucket, number = self._where[id(slot)]
            bucket.put(number)
            if not bucket.waiting:
                self._launch_full()

    def _arrived_alone(self, slot: ShardedParameter) -> None:
        """Take a gradient that needs no communication.

        Without an earlier sum it stays in the leaf until the end, as the backward may still fail.
        """
        if slot.synchronised() is None:
            slot.touch(keeps=not slot.pending)
        else:
            self._settle_alone(slot)

    def _launch_full(self) -> None:
        """Start the buckets whose turn it is.

        The one before has had the time that this one took to fill.  It is drained first if that frees
        memory: at most two scattered buckets have a buffer at a time.
        """
        while self._launched < len(self.buckets) and not self.buckets[self._launched].waiting:
            if self._launched and self.buckets[self._launched - 1].scatters:
                self.buckets[self._launched - 1].drain()
            self.buckets[self._launched].launch()
            self._launched += 1

    def _finish(self) -> None:
        if self.synchronises:
            self._take_coming()
            self._synchronise()
        else:
            for slot in self._slots:
                if slot.leaf.grad is not None:
                    slot.leaf.grad = ready(slot.leaf.grad)
                    self._show(slot, slot.leaf.grad)
        for slot in self._slots:
            slot.untouch()
        self._running = None

    def _synchronise(self) -> None:
        for bucket in self.buckets[self._launched :]:
            for number in sorted(bucket.waiting):
                bucket.put(number)
            self._launch_full()
        for bucket in self.buckets:
            bucket.drain()  # of all, before a gradient changes: a collective may fail
        for bucket in self.buckets:
            bucket.finish()
        for slot in self._alone:
            if slot.leaf.grad is not None:  # kept by `_arrived_alone` or under no_sync
                self._settle_alone(slot)

    def refuse_pending(self) -> None:
        """Raise `InputError` if a gradient is a sum of this rank alone, of backwards under no_sync."""
        for slot in self._slots:
            slot.reconcile()
            if slot.pending and (slot.hops or slot.entry.exchange):
                raise InputError(
                    f"The gradient of {slot.name!r} is a sum of this rank's microbatches alone "
                    "(no_sync): other ranks' parts are still to be added. Run the last backward "
                    "before clip_grad_norm_ and the optimizer's step outside no_sync()."
                )

    def _settle_alone(self, slot: ShardedParameter) -> None:
        """Set a gradient that needs no sum over ranks, at once: the leaf's copy is freed early."""
        assert slot.leaf.grad is not None
        slot.touch(keeps=False)
        slot.settle(slot.entry.cut(slot.leaf.grad.to(slot.local.dtype)))

    def _show(self, slot: ShardedParameter, sums: torch.Tensor) -> None:
        """Show this rank's sums so far in `p.grad`; contributions of other ranks are missing."""
        part = slot.pieces.view(sums.to(slot.local.dtype).contiguous())
        for hop, size in zip(
            reversed([hop for hop in slot.hops if hop.gathers]), slot.pieces.leading, strict=True
        ):
            assert size == hop.ranks
            part = part[self._axes[hop.axis].rank]
        slot.show_pending(kept_here(slot.entry, part.reshape(slot.entry.shape), self._axes))


def compression_of(slot: ShardedParameter, compression: Compression | None) -> Compression | None:
    """Return how the gradient of one parameter travels compressed; None: it does not."""
    return compression if compressed_hops(slot.hops, slot.entry.shape, compression) else None


def in_buckets(
    slots: Iterable[ShardedParameter], shares: int = 1, compression: Compression | None = None
) -> Iterator[list[ShardedParameter]]:
    """Group slots of equal hops and dtypes, in order, into buckets of at most the bucket size.

    Gradients that travel compressed do not share buckets with others.
    """

    def key(slot: ShardedParameter) -> Hashable:
        over = None if slot.entry.exchange is None else slot.entry.exchange.axis
        how = compression_of(slot, compression)
        return slot.hops, slot.leaf_dtype, slot.local.dtype, slot.pieces.leading, over, how

    return grouped(slots, key, lambda slot: slot.leaf.numel() * slot.leaf.element_size(), shares)


__all__ = ["Reducer", "in_buckets"]
