"""What ranks send each other: the facts of each kind of exchange, by name.

`nbytes` is always the larger tensor on one rank: the output of an all-gather, the input of a
reduce-scatter or an all-to-all, the tensor of an all-reduce, a broadcast or a send.  In a permute every
rank sends its tensor to one rank of the axis, and receives one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Exchange:
    """One kind of exchange.

    messages    ranks -> messages that each rank of a ring sends one after the other
    share       ranks -> bytes that each rank of a ring sends, relative to `nbytes`
    sums        it adds up what the ranks have
    whole       its result has the layout of its operand, so that nothing is packed or unpacked
    scatters    ranks send to others than the next one in the ring, each through its own adapter
    half_of     the exchange that does this and its inverse, and so takes at least as long
    trees       times that a tree is passed (`algorithms.py`); 0: there is no algorithm with trees
    nested      times that nested rings are passed; 0: it cannot be nested
    """

    messages: Callable[[int], float]
    share: Callable[[int], float]
    sums: bool = False
    whole: bool = False
    scatters: bool = False
    half_of: str = ""
    trees: int = 0
    nested: int = 0


def _others(ranks: int) -> int:
    return ranks - 1


def _apart(ranks: int) -> float:
    return (ranks - 1) / ranks


EXCHANGES: dict[str, Exchange] = {
    "all_reduce": Exchange(
        lambda n: 2 * (n - 1), lambda n: 2 * (n - 1) / n, sums=True, whole=True, trees=2, nested=2
    ),
    "all_gather": Exchange(_others, _apart, half_of="all_reduce", nested=1),
    "reduce_scatter": Exchange(_others, _apart, sums=True, half_of="all_reduce", nested=1),
    "all_to_all": Exchange(_others, _apart, scatters=True),
    "broadcast": Exchange(_others, lambda n: 1.0, trees=1),
    "send": Exchange(lambda n: 1, lambda n: 1.0),
    "permute": Exchange(lambda n: 1, lambda n: 1.0, scatters=True),
}
