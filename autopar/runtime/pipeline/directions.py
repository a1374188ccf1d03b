"""Process groups for transfers between workers, one for each direction.

NCCL runs the unbatched transfers of a pair of ranks in one queue per group, whatever their tags and
directions.  Receives that are posted ahead would hold up the sends behind them, on both sides.  In a
group of its own, a direction has only sends on one side and only receives on the other.  Both sides
issue them in the order of the schedule's lists, which all derive from one order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from autopar.runtime.gradient_groups import of_all_ranks

Pair = tuple[int, int]
"""The ranks that send and receive."""


@dataclass(frozen=True, eq=False)
class Directions:
    """The groups `up`, for transfers to higher ranks, and `down`, for those to lower ones."""

    up: dist.ProcessGroup
    down: dist.ProcessGroup
    device: torch.device | str
    _connected: set[Pair] = field(default_factory=set)

    @classmethod
    def make(cls, device: torch.device | str) -> Directions:
        """Return the groups, which all pipelines share; all ranks call it."""
        return cls(of_all_ranks("transfers up"), of_all_ranks("transfers down"), device)

    def between(self, source: int, target: int) -> dist.ProcessGroup:
        """Return the group for transfers from one rank to another."""
        return self.up if source < target else self.down

    def connect(self, pairs: Iterable[Pair]) -> None:
        """Connect this rank with others; `pairs` are all that it is part of, on both sides of each.

        NCCL makes the communicator of a pair in its first transfer, and waits for the other rank.  In
        the order in which schedules need them, ranks may wait for each other; in sorted order they
        cannot.  Gloo connects all ranks when a group is made.
        """
        new = set(pairs) - self._connected
        if dist.get_backend(self.up) != "gloo":
            word = torch.zeros(1, device=self.device)
            for source, target in sorted(new):
                group = self.between(source, target)
                if source == dist.get_rank():
                    dist.send(word, target, group=group)
                else:
                    dist.recv(word, source, group=group)
        self._connected.update(new)
