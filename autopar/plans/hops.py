"""The hops of a parameter from rest to leaf: conversions that are issued once per step, in buckets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autopar.ir.conversion import Step
from autopar.ir.mesh import Mesh
from autopar.ir.placement import S
from autopar.plans.decisions import Conversion, ParameterPlan


@dataclass(frozen=True)
class Hop:
    """One conversion from rest towards the leaf, on one mesh axis.

    `gathers`: forward gathers shards, backward scatters gradients.  `reduces`: backward sums over the
    axis.  ZeRO's S -> R does both, data parallelism's I -> R only reduces, S -> I only gathers.
    """

    axis: str
    ranks: int
    gathers: bool
    reduces: bool


def hops(plan: ParameterPlan, mesh: Mesh) -> tuple[Hop, ...]:
    """Return the parameter's hops, in order from rest to leaf; axes of size 1 need none."""
    return hops_of(plan.steps, mesh)


def hops_of(steps: Iterable[Step | Conversion], mesh: Mesh) -> tuple[Hop, ...]:
    """Return the hops of steps from rest to leaf."""
    found = []
    for step in steps:
        ranks = mesh.sizes[step.axis]
        gathers = isinstance(step.source[step.axis], S)
        reduces = str(step.target[step.axis]) == "R"
        if ranks > 1 and (gathers or reduces):
            found.append(Hop(mesh.names[step.axis], ranks, gathers, reduces))
    return tuple(found)
