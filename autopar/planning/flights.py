"""One graph on one mesh, planned for several numbers of microbatches in flight.

Seconds do not depend on that number, only what fits does.  So the problem is posed once, one plan
without a limit serves all that it fits, and what was found for more in flight may do for fewer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from autopar.blocks import FEWEST, MODES, blocks, no_blocks
from autopar.errors import InputError
from autopar.graph import Graph, Saved
from autopar.mesh import Mesh
from autopar.planning.limited import Known, within
from autopar.planning.posed import Posed, Settings, pose
from autopar.plans.plan import Plan
from autopar.solve.problem import Limit
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
        self._tightest: Known | None = None

    def plan(self, in_flight: int) -> tuple[Posed, Plan]:
        """The best plan, and the problem that it answers.  Blocks may be recomputed where the limit
        binds."""
        if in_flight not in self._plans:
            self._plans[in_flight] = self._planned(in_flight)
        return self._plans[in_flight]

    def unlimited(self, in_flight: int) -> tuple[Posed, Plan] | None:
        """The best plan of all, where it fits: nothing has to be searched for."""
        limit, free = self._settings.memory_limit, self._free
        free = free.with_estimate(replace(free.estimate, in_flight=in_flight))
        fits = limit is None or free.estimate.memory_nbytes <= limit
        return (self._plain.flying(in_flight), free) if fits else None

    def may_take_less(self, seconds: float, in_flight: int) -> bool:
        """Whether the solver's bound leaves room below so many seconds; where a search is short, yes."""
        limit = self._settings.memory_limit
        if seconds == math.inf or limit is None or self.unlimited(in_flight) is not None:
            return True
        if self._free.bound_s >= seconds:
            return False
        richer = self._richer.flying(in_flight)
        counted = Limit(limit - richer.priced.least_working, in_flight)
        return richer.ready.bound_s(counted) < seconds

    def _planned(self, in_flight: int) -> tuple[Posed, Plan]:
        found, limit = self.unlimited(in_flight), self._settings.memory_limit
        if found is not None or limit is None:
            assert found is not None
            return found
        richer = self._richer.flying(in_flight)
        plain = self._plain.flying(in_flight)
        plan, self._tightest = within(richer, plain, limit, self._tightest)
        return richer, plan

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
