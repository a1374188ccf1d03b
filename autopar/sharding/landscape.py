"""Computes the best plan for every batch size and every memory limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from autopar.capture.saved import saved
from autopar.errors import OverLimitError
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.sharding.compile import compile_graph
from autopar.sharding.sharding_problem import Compilation, Settings
from cost_models.hardware import Hardware


@dataclass(frozen=True)
class Point:
    """A batch size, a memory limit per device, and the best plan for them (None: nothing fits)."""

    batch: int
    limit_nbytes: float
    made: Compilation | None
    smallest_nbytes: float | None = None
    """If nothing fits: the peak memory of the smallest plan that was found."""


def landscape(
    graphs: Iterable[tuple[int, Graph]],
    mesh: Mesh,
    hardware: Hardware,
    settings: Settings,
    memories: Sequence[float],
) -> Iterator[Point]:
    """Yield the points batch by batch, from the largest memory limit to the smallest.

    A plan that also fits a smaller limit is the best one there too, so it is not made again.
    """
    for batch, graph in graphs:
        kept = saved(graph, hardware.device.kind)
        made: Compilation | None = None
        smallest: float | None = None
        for limit in sorted(memories, reverse=True):
            asked = replace(settings, memory_limit=limit)
            if smallest is None and not _fits(made, limit):
                try:
                    made = compile_graph(graph, mesh, hardware, asked, kept)
                except OverLimitError as error:
                    made, smallest = None, error.least_nbytes
            yield Point(batch, limit, made, smallest)


def _fits(made: Compilation | None, limit: float) -> bool:
    return made is not None and made.plan.estimate.memory_nbytes <= limit
