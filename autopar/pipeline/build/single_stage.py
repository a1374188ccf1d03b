"""A model on all devices without stages: its plan is sought only as far as it may win.

Where the fastest plan of all fits, that is the answer, and it is known soon.  Where the limit binds, the
search within it is long for a deep model; what no plan within it undercuts is known much sooner.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from autopar.capture.saved import saved
from autopar.errors import InfeasibleError
from autopar.ir.graph import Graph, Saved
from autopar.ir.mesh import Mesh
from autopar.sharding.compile import compile_graph
from autopar.sharding.in_flight import InFlightPlanner
from autopar.sharding.sharding_problem import Compilation, Settings
from cost_models.hardware import Hardware


@dataclass(frozen=True)
class SingleStagePlanner:
    """One graph of the whole batch on the whole mesh, within a memory limit."""

    graph: Graph
    mesh: Mesh
    hardware: Hardware
    settings: Settings

    def soon(self) -> Compilation | None:
        """The best plan, where the limit leaves the fastest alone; None where it does not."""
        try:
            fits = self._flights.unlimited(self.settings.in_flight) is not None
        except InfeasibleError:
            return None
        return self.after_all() if fits else None

    def after_all(self, below: float = math.inf) -> Compilation | None:
        """The best plan; None where none fits, or none of so few seconds, as the solver counts."""
        try:
            return compile_graph(
                self.graph, self.mesh, self.hardware, self.settings, self._kept, below,
                self._flights,
            )  # fmt: skip
        except InfeasibleError:
            return None

    def look_ahead(self) -> None:
        """Find what no plan undercuts, where nothing else is to be done: `after_all` asks for it."""
        with suppress(InfeasibleError):
            self._flights.bound_s(self.settings.in_flight)

    @cached_property
    def _kept(self) -> Mapping[str, Saved]:
        return saved(self.graph, self.hardware.device.kind)

    @cached_property
    def _flights(self) -> InFlightPlanner:
        return InFlightPlanner(self.graph, self.mesh, self.hardware, self.settings, self._kept)
