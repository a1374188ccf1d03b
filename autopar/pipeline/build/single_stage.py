"""Plans a model on all devices without stages, and searches only as long as the plan may win.

If the fastest plan fits, it is the answer and is found quickly.  If the memory limit binds, the search
for a deep model takes long; a lower bound on all plans within the limit is known much sooner.
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
    """Plans one graph of the whole batch on the whole mesh, within a memory limit."""

    graph: Graph
    mesh: Mesh
    hardware: Hardware
    settings: Settings

    def soon(self) -> Compilation | None:
        """Return the best plan if the fastest one fits the limit; otherwise None."""
        try:
            fits = self._flights.unlimited(self.settings.in_flight) is not None
        except InfeasibleError:
            return None
        return self.after_all() if fits else None

    def after_all(self, below: float = math.inf) -> Compilation | None:
        """Return the best plan; None if none fits, or none is below `below` seconds in the solver."""
        try:
            return compile_graph(
                self.graph, self.mesh, self.hardware, self.settings, self._kept, below,
                self._flights,
            )  # fmt: skip
        except InfeasibleError:
            return None

    def look_ahead(self) -> None:
        """Compute the lower bound that `after_all` needs, while nothing else has to be done."""
        with suppress(InfeasibleError):
            self._flights.bound_s(self.settings.in_flight)

    @cached_property
    def _kept(self) -> Mapping[str, Saved]:
        return saved(self.graph, self.hardware.device.kind)

    @cached_property
    def _flights(self) -> InFlightPlanner:
        return InFlightPlanner(self.graph, self.mesh, self.hardware, self.settings, self._kept)
