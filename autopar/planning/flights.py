"""One graph on one mesh, planned for several numbers of microbatches in flight.

Seconds do not depend on that number, only what fits does.  So the problem is posed once, one plan
without a limit serves all that it fits, and what was found for more in flight may do for fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from autopar.blocks import FEWEST, MODES, blocks, no_blocks
from autopar.errors import InputError
from autopar.graph import Graph, Saved
from autopar.mesh import Mesh
from autopar.planning.limited import within
from autopar.planning.posed import Posed, Settings, pose
from autopar.plans.plan import Plan
from autopar.solve.problem import Assignment
from cost_models.hardware import Hardware


class Flights:
    """The best plans within the limit of the settings, by microbatches in flight."""

    def __init__(
        self,
        graph: Graph,
        mesh: Mesh,
        hardware: Hardware,
        settings: Settings,
        saved: Mapping[str, Saved],
    ) -> None:
        _refuse_no_blocks(graph, settings)
        self.graph = graph
        self._mesh, self._hardware, self._settings = mesh, hardware, settings
        self._saved = saved
        self._plans: dict[int, tuple[Posed, Plan]] = {}
        self._tightest: Assignment | None = None

    def plan(self, in_flight: int) -> tuple[Posed, Plan]:
        """The best plan, and the problem that it answers.  Blocks may be recomputed where the limit
        binds."""
        if in_flight not in self._plans:
            self._plans[in_flight] = self._planned(in_flight)
        return self._plans[in_flight]

    def _planned(self, in_flight: int) -> tuple[Posed, Plan]:
        limit = self._settings.memory_limit
        plain, free = self._plain.flying(in_flight), self._free
        free = free.with_estimate(replace(free.estimate, in_flight=in_flight))
        if limit is None or free.estimate.memory_nbytes <= limit:
            return plain, free
        richer = self._richer.flying(in_flight)
        found, answer = within(richer, plain, limit, self._tightest)
        self._tightest = answer
        return richer, found

    @cached_property
    def _plain(self) -> Posed:
        return pose(self.graph, self._mesh, self._hardware, self._settings, self._saved)

    @cached_property
    def _free(self) -> Plan:
        """The best plan without a limit."""
        return self._plain.plan(self._plain.solve())

    @cached_property
    def _richer(self) -> Posed:
        """What may be answered where the limit binds: every block decides what it computes again."""
        if self._settings.recompute is not None or not blocks(self.graph):
            return self._plain
        return pose(self.graph, self._mesh, self._hardware, self._settings, self._saved, MODES)


def _refuse_no_blocks(graph: Graph, settings: Settings) -> None:
    asked = settings.recompute or "none"
    if asked != "none" and settings.first and not blocks(graph):
        near = "".join(f" {path} {why}." for path, why in no_blocks(graph)[:1])
        raise InputError(
            f"recompute={asked!r} finds nothing to recompute in {graph.name}: a block is one of "
            f"several numbered modules (such as layers.0), of {FEWEST} operators at least, that runs "
            f"once and in one piece.{near} Leave recompute out."
        )
