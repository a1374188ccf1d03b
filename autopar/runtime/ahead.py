"""Gathers that start while another block computes: in a loop over blocks, one block ahead.

In the forward the loop starts the gather of the next block before a block runs.  In the backward, the
first use of a block's gathered weights starts the gather of the block before it.  All ranks start the
same gathers in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from autopar.runtime.kernels import Started
from autopar.runtime.late import Lane
from autopar.runtime.regather import Gathers


@dataclass(eq=False)
class Ahead:
    """The gather of one block in a loop.

    `begin` starts it, and `before` belongs to the previous block.
    """

    begin: Callable[[], Started]
    lane: Lane
    """Of the reductions of the loop's gradients."""
    before: Ahead | None = None
    again: Gathers | None = None
    """How the backward gathers the weights again, where it does."""
    _started: Started | None = None

    def start(self) -> None:
        """Start the gather, unless it has been started."""
        if self._started is None:
            self._started = self.begin()

    def start_again(self) -> None:
        """Start the gather, and that of the block before: this one is recomputed for the backward."""
        self.start()
        if self.before is not None:
            self.before.start()

    def take(self) -> Started:
        """Return the gather, which is started if it was not."""
        self.start()
        started, self._started = self._started, None
        assert started is not None
        return started

    def remember(self, gathers: Gathers) -> None:
        """Let the backward start the gathers of the block before with these."""
        self.again = gathers
        if self.before is not None:
            gathers.before = self.before.again


class Block(Protocol):
    """A block whose weights can be gathered before it runs."""

    ahead: Ahead | None

    def gather(self) -> Started:
        """Start to gather the weights."""
        ...


B = TypeVar("B", bound=Block)


def one_ahead(blocks: Sequence[B]) -> Iterator[B]:
    """Yield the blocks; the gather of the next one starts before each is run."""
    before, lane = None, Lane()
    for block in blocks:
        block.ahead = before = Ahead(block.gather, lane, before)
    for number, block in enumerate(blocks):
        for each in blocks[number : number + 2]:
            if each.ahead is not None:
                each.ahead.start()
        yield block
