"""Makes plans that need little memory by construction, if the search within a limit finds none.

The solver counts memory at rest and what the backward keeps.  If most of a step's peak memory is
something else, the smallest assignment need not give the smallest plan.  What people try then is to
shard parameters over all devices and to recompute all blocks.
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
    """Yield the fastest decisions under the user's constraints and those of each preset in `NAMES`."""
    modes = settings.recompute or ("full" if blocks(graph) else "none")
    for name in NAMES:
        asked = replace(
            settings,
            constraints=(*settings.constraints, *preset_constraints(name, mesh)),
            regather=presets.regathers(name) if settings.regather is None else settings.regather,
        )
        # The user's constraints may contradict this preset.
        with suppress(ConstraintError, InfeasibleError):
            posed = pose(graph, mesh, hardware, asked, saved, (modes,))
            yield posed.priced.decisions(posed.solve())
