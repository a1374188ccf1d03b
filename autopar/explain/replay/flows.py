"""Rescales a plan's communication times to other bandwidths; latencies stay the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autopar.cost.prices import Prices
from autopar.errors import InputError
from autopar.explain.replay.conditions import LINKS, Conditions
from autopar.ir.mesh import Mesh
from autopar.plans.estimate import Flow
from autopar.utils.messages import argument
from cost_models.collectives import collective_seconds
from cost_models.hardware import Hardware, Link, digest, load, names


class Flows:
    """The flows of one mesh under some conditions."""

    def __init__(self, mesh: Mesh, conditions: Conditions, hardware: Hardware | None) -> None:
        self._mesh, self._conditions = mesh, conditions
        self._as_planned = not conditions.bandwidth
        if hardware is not None and not self._as_planned:
            self._before = Prices(mesh, hardware)
            self._after = Prices(mesh, changed(hardware, conditions))

    def seconds(self, flow: Flow) -> float:
        """Return the seconds of a flow under the conditions."""
        return flow.seconds * self.factor(flow)

    def total(self, flows: Iterable[Flow], scope: str, direction: str | None = None) -> float:
        """Return the total seconds of the flows of a scope and, if given, of a direction."""
        return sum(
            self.seconds(flow)
            for flow in flows
            if flow.scope == scope and direction in (None, flow.direction)
        )

    def factor(self, flow: Flow) -> float:
        """Return the ratio to the planned seconds, with all calls priced at their mean size."""
        if self._as_planned or not flow.calls:
            return 1.0
        axis = self._mesh.index(flow.axis)
        kind, ranks = flow.collective, self._mesh.sizes[axis]
        before, after = (prices.link(kind, axis) for prices in (self._before, self._after))
        faster = scaled(after, self._conditions.bandwidth.get(flow.axis, 1.0))
        size = flow.nbytes / flow.calls
        late_s = self._before.late(axis) if flow.scope == "microbatch" else 0.0
        was = collective_seconds(kind, size, ranks, before) + late_s
        return (collective_seconds(kind, size, ranks, faster) + late_s) / was if was else 1.0


def changed(hardware: Hardware, conditions: Conditions) -> Hardware:
    """Return the profile with the links' bandwidths scaled by the conditions."""
    factors = [conditions.bandwidth.get(name, 1.0) for name in LINKS]
    return replace(
        hardware,
        intra_host=scaled(hardware.intra_host, factors[0]),
        inter_host=scaled(hardware.inter_host, factors[1]),
    )


def scaled(link: Link, factor: float) -> Link:
    """Return the link with `factor` times the bandwidth, including its fits and levels."""
    fits = (fit.faster(factor) for fit in link.fits)
    levels = (replace(level, bytes_per_s=level.bytes_per_s * factor) for level in link.levels)
    return replace(
        link, bytes_per_s=link.bytes_per_s * factor, fits=tuple(fits), levels=tuple(levels)
    )


def checked(
    hardware: Hardware | None, named: str, figures: str, conditions: Conditions
) -> Hardware | None:
    """Return the profile that priced the plan; if none is given, the shipped one of that name.

    Only conditions with another bandwidth need it; then `InputError` is raised if it is missing or has
    other numbers than the plan's.
    """
    if not conditions.bandwidth:
        return hardware
    if hardware is None and named in names():
        hardware = load(named)
    if hardware is None:
        raise InputError(
            f"Another bandwidth is computed from the links of {named}, a profile that does not "
            f"come with autopar: pass its file with {argument('hardware')}."
        )
    refuse_other(hardware, named, figures)
    return hardware


def refuse_other(hardware: Hardware, named: str, figures: str) -> None:
    """Raise `InputError` unless the profile has the numbers that priced the plan."""
    if figures and digest(hardware) != figures:
        raise InputError(
            f"The plan was priced for {named} ({figures}), not for {hardware.device.name} "
            f"({digest(hardware)}): pass that profile's file with {argument('hardware')}, or plan again."
        )
