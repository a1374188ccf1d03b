"""Plans that take little memory by construction, for when the search within a limit finds none.

The solver counts what rests and what is kept; where most of a step's peak is something else, what it
finds smallest need not be.  Parameters that are spread over all devices, with all blocks computed
again, are what people try then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from autopar.errors import ConstraintError, InfeasibleError
from autopar.ir.blocks import blocks
from autopar.ir.graph import Graph, Saved
from autopar.ir.mesh import Mesh
from autopar.request import presets
from autopar.sharding.asked import preset_constraints
from autopar.sharding.sharding_problem import Settings, pose
from autopar.sharding.space import Decisions
from cost_models.hardware import Hardware

NAMES = ("fsdp", "fsdp_megatron")


def frugal(
    graph: Graph, mesh: Mesh, hardware: Hardware, settings: Settings, saved: Mapping[str, Saved]
) -> Iterator[Decisions]:
    """The fastest decisions under each of these presets, beside what was asked for."""
    modes = settings.recompute or ("full" if blocks(graph) else "none")
    for name in NAMES:
        asked = replace(
            settings,
            constraints=(*settings.constraints, *preset_constraints(name, mesh)),
            regather=presets.regathers(name) if settings.regather is None else settings.regather,
        )
        # What was asked for may leave no room for this preset.
        with suppress(ConstraintError, InfeasibleError):
            posed = pose(graph, mesh, hardware, asked, saved, (modes,))
            yield posed.priced.decisions(posed.solve())
