"""Keeps buffers consistent between workers: the stage that wrote to a buffer last has its value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch.distributed as dist

from autopar.runtime.pipeline.built import Built
from autopar.runtime.pipeline.targets import Spread


@dataclass(eq=False)
class Buffers:
    """Tracks which workers have the last value of each buffer.

    `writers` has the buffers that not all workers have, with the workers that have the last value.  A
    pipeline of other module modes may have other cuts, and read a buffer on a worker that did not
    write it.
    """

    targets: Mapping[str, Spread]
    writers: dict[str, frozenset[int]] = field(default_factory=dict)

    def used_by(self, built: Built) -> None:
        """Before a step, send readers the last value of their buffers, and record the step's writers.

        Collective.
        """
        readers: dict[str, set[int]] = {}
        for stage, graph in enumerate(built.stages.graphs):
            for node in graph.leaves("buffer"):
                readers.setdefault(node.target, set()).update(built.plan.schedule.holders[stage])
        for name in sorted(self.writers):
            if readers.get(name, set()) - self.writers[name]:
                self._share(name, built)
        for stage, graph in enumerate(built.stages.graphs):
            for name, _ in graph.mutations:
                self.writers[name] = frozenset(built.plan.schedule.holders[stage])

    def share(self, built: Built) -> None:
        """Broadcast the last value of all buffers to all ranks.  Collective."""
        for name in sorted(self.writers):
            self._share(name, built)

    def _share(self, name: str, built: Built) -> None:
        source = built.plan.workers[min(self.writers.pop(name))].ranks[0]
        dist.broadcast(self.targets[name].tensor, src=source)
