"""The best plan for every size of the batch and every limit on memory.

Graphs in, one `Point` after the other out; every plan is one that `compile` makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autopar.capture.saved import saved
from autopar.compile import Compilation, Settings, compile_graph, pose
from autopar.errors import InfeasibleError
from autopar.graph import Graph, Saved
from autopar.mesh import Mesh
from autopar.problem import Array, Problem
from autopar.solve import solve
from cost_models.hardware import Hardware

PRICES = (1e6, 1e8, 1e10, 1e12)
"""Bytes that a second is worth where the smallest plan is looked for."""


@dataclass(frozen=True)
class Point:
    """A batch, a limit on memory per device, and the best plan for them (None: nothing fits)."""

    batch: int
    limit_nbytes: float
    made: Compilation | None
    smallest_nbytes: float | None = None
    """Where nothing fits: the peak of the smallest plan that was found."""


def landscape(
    graphs: Iterable[tuple[int, Graph]],
    mesh: Mesh,
    hardware: Hardware,
    settings: Settings,
    memories: Sequence[float],
) -> Iterator[Point]:
    """Points batch by batch, from the largest memory to the smallest.

    A plan that fits a smaller limit as well is the best there too: it is not made again.
    """
    for batch, graph in graphs:
        kept = saved(graph)
        made: Compilation | None = None
        smallest: float | None = None
        for limit in sorted(memories, reverse=True):
            asked = replace(settings, memory_limit=limit)
            if smallest is None and not _fits(made, limit):
                try:
                    made = compile_graph(graph, mesh, hardware, asked, kept)
                except InfeasibleError:
                    made, smallest = None, _smallest(graph, mesh, hardware, settings, kept)
            yield Point(batch, limit, made, smallest)


def _fits(made: Compilation | None, limit: float) -> bool:
    return made is not None and made.plan.estimate.memory_nbytes <= limit


def _smallest(
    graph: Graph, mesh: Mesh, hardware: Hardware, settings: Settings, kept: Mapping[str, Saved]
) -> float:
    """Peak bytes of the smallest plan found: bytes are minimised in place of seconds.

    Seconds still count a little, at one price or another: the solver does not count what is alive
    while an operator runs, and the fast way to run it is the one that splits it.
    """
    posed = pose(graph, mesh, hardware, settings, kept)
    made = (posed.compilation(solve(_weighed(posed.priced.problem, p))) for p in PRICES)
    return float(min(one.plan.estimate.memory_nbytes for one in made))


def _weighed(problem: Problem, price: float) -> Problem:
    """The problem whose costs are bytes, plus `price` bytes per second."""

    def cost(seconds: Array, nbytes: Array | None) -> Array:
        return price * seconds + (0.0 if nbytes is None else nbytes)

    variables = tuple(replace(v, seconds=cost(v.seconds, v.nbytes)) for v in problem.variables)
    factors = tuple(replace(f, seconds=cost(f.seconds, f.nbytes)) for f in problem.factors)
    return Problem(variables, factors)
