"""Seconds of a plan's flows where links have another bandwidth: latency stays, the rest is divided."""

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
        """Of one flow."""
        return flow.seconds * self.factor(flow)

    def total(self, flows: Iterable[Flow], scope: str, direction: str | None = None) -> float:
        """Of those of a scope, and of a direction."""
        return sum(
            self.seconds(flow)
            for flow in flows
            if flow.scope == scope and direction in (None, flow.direction)
        )

    def factor(self, flow: Flow) -> float:
        """By how much it takes longer: calls are all priced at their average size."""
        if self._as_planned or not flow.calls:
            return 1.0
        axis = self._mesh.index(flow.axis)
        kind, ranks = flow.collective, self._mesh.sizes[axis]
        links = "scattering_links" if kind == "all_to_all" else "links"
        before, after = (getattr(p, links)[axis] for p in (self._before, self._after))
        faster = scaled(after, self._conditions.bandwidth.get(flow.axis, 1.0))
        size = flow.nbytes / flow.calls
        late_s = self._before.late(axis) if flow.scope == "microbatch" else 0.0
        was = collective_seconds(kind, size, ranks, before) + late_s
        return (collective_seconds(kind, size, ranks, faster) + late_s) / was if was else 1.0


def changed(hardware: Hardware, conditions: Conditions) -> Hardware:
    """The profile with other links."""
    factors = [conditions.bandwidth.get(name, 1.0) for name in LINKS]
    return replace(
        hardware,
        intra_host=scaled(hardware.intra_host, factors[0]),
        inter_host=scaled(hardware.inter_host, factors[1]),
    )


def scaled(link: Link, factor: float) -> Link:
    """A link that carries so many times as much per second, what was fitted included."""
    fits = (fit.faster(factor) for fit in link.fits)
    levels = (replace(level, bytes_per_s=level.bytes_per_s * factor) for level in link.levels)
    return replace(
        link, bytes_per_s=link.bytes_per_s * factor, fits=tuple(fits), levels=tuple(levels)
    )


def checked(
    hardware: Hardware | None, named: str, figures: str, conditions: Conditions
) -> Hardware | None:
    """The plan's own profile, by its name if autopar brings it.

    `InputError` where another bandwidth needs it and it is not there.
    """
    if not conditions.bandwidth:
        return hardware
    if hardware is None and named in names():
        hardware = load(named)
    if hardware is None:
        raise InputError(
            f"Another bandwidth is worked out from the links of {named}, a profile that does not come "
            f"with autopar: pass its file with {argument('hardware')}."
        )
    refuse_other(hardware, named, figures)
    return hardware


def refuse_other(hardware: Hardware, named: str, figures: str) -> None:
    """`InputError` unless the profile has the figures that a plan was priced by."""
    if figures and digest(hardware) != figures:
        raise InputError(
            f"The plan was priced for {named} ({figures}), not for {hardware.device.name} "
            f"({digest(hardware)}): pass that profile's file with {argument('hardware')}, or plan again."
        )
