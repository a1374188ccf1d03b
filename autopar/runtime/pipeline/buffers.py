"""Which worker's copy of a buffer is up to date: that of the stage that wrote to it last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch.distributed as dist

from autopar.runtime.pipeline.built import Built
from autopar.runtime.pipeline.targets import Spread


@dataclass(eq=False)
class Buffers:
    """`writers`: by buffer, the workers that alone have its last value; none where all have it.

    A pipeline of other modes may be cut elsewhere, and read a buffer where nobody has written to it.
    """

    targets: Mapping[str, Spread]
    writers: dict[str, frozenset[int]] = field(default_factory=dict)

    def used_by(self, built: Built) -> None:
        """Before a step: all that read a buffer get its last value, and some will write to it."""
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
        """All ranks get the last value of all buffers; a collective call."""
        for name in sorted(self.writers):
            self._share(name, built)

    def _share(self, name: str, built: Built) -> None:
        source = built.plan.workers[min(self.writers.pop(name))].ranks[0]
        dist.broadcast(self.targets[name].tensor, src=source)
