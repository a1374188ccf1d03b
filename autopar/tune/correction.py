"""Fits a profile's prices to measured steps: one factor for compute, one for each kind of link.

A step is predicted as seconds of compute and of exposed communication inside a host and between hosts.
The factors multiply these so that the sums come as near as possible to the measured steps.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autopar.plans.plan import Plan
from cost_models.hardware import Fit, Hardware, Link, Tier

Array = NDArray[np.float64]
BOUNDS = (1 / 16, 16.0)
"""Of a factor: a profile that is further off is of another machine."""
PRIOR = 0.03
"""Weight of a factor's relative distance from the others, beside a relative error of a step."""


@dataclass(frozen=True, slots=True)
class Factors:
    """What a profile's seconds are multiplied by."""

    compute: float = 1.0
    intra_host: float = 1.0
    inter_host: float = 1.0

    @property
    def values(self) -> tuple[float, float, float]:
        """In the order of `parts`."""
        return self.compute, self.intra_host, self.inter_host


def parts(plan: Plan, hardware: Hardware) -> tuple[float, float, float]:
    """Return the predicted seconds of compute and of exposed communication by kind of link.

    Exposed communication is divided among the axes as their collectives' seconds are.
    """
    estimate, mesh = plan.estimate, plan.mesh
    inside = outside = 0.0
    for flow in estimate.flows:
        axis = mesh.index(flow.axis)
        if mesh.stride(axis) * mesh.sizes[axis] > hardware.devices_per_host:
            outside += flow.seconds
        else:
            inside += flow.seconds
    share = estimate.exposed_s / (inside + outside) if inside + outside else 0.0
    return estimate.compute_s, inside * share, outside * share


def fitted(steps: Sequence[tuple[tuple[float, float, float], float]]) -> Factors:
    """Fit the factors to pairs of a step's parts and its measured seconds; relative errors count.

    Where the steps do not tell the parts apart, all factors are the same: that of the median step.  The
    factor of a link that no step uses is 1.
    """
    if not steps:
        return Factors()
    every, seconds = np.array([part for part, _ in steps]), np.array([s for _, s in steps])
    alike = float(np.median(seconds / every.sum(axis=1)))
    rows = every * alike / seconds[:, None]
    used: NDArray[np.bool_] = every.sum(axis=0) > 0
    weight = PRIOR * np.eye(int(used.sum()))
    left = np.vstack([rows[:, used], weight])
    right = np.concatenate([np.ones(len(rows)), np.full(len(weight), PRIOR)])
    found = np.ones(len(used))
    found[used] = alike * _within_bounds(left, right, BOUNDS[0] / alike, BOUNDS[1] / alike)
    return Factors(*map(float, np.clip(found, *BOUNDS)))


def _within_bounds(left: Array, right: Array, least: float, most: float) -> Array:
    """Return the x of least |left x - right| within bounds, fixing what leaves them at the bound."""
    found = np.full(left.shape[1], np.nan)
    while (free := np.isnan(found)).any():
        rest = right - left[:, ~free] @ found[~free]
        solved = np.linalg.lstsq(left[:, free], rest, rcond=None)[0]
        kept = np.clip(solved, least, most)
        # Those outside are fixed first: the others move when they do.
        fixed = kept != solved if (kept != solved).any() else np.full(len(kept), True)
        found[np.flatnonzero(free)[fixed]] = kept[fixed]
    return found


def corrected(hardware: Hardware, factors: Factors, trials: int) -> Hardware:
    """Return the profile with its seconds multiplied by the factors, and its source saying so."""
    if factors == Factors():
        return hardware
    today = datetime.date.today().isoformat()

    def factor(tier: Tier) -> float:
        crosses = tier.devices >= hardware.devices_per_host
        return factors.inter_host if crosses else factors.intra_host

    return replace(
        hardware,
        device=hardware.device.slower(factors.compute),
        intra_host=_slower_link(hardware.intra_host, factors.intra_host),
        inter_host=_slower_link(hardware.inter_host, factors.inter_host),
        tiers=tuple(_slower_tier(tier, factor(tier)) for tier in hardware.tiers),
        source=f"{hardware.source}; corrected by {trials} measured steps of {today}",
        date=today,
    )


def _slower_link(link: Link, factor: float) -> Link:
    return replace(
        link,
        bytes_per_s=link.bytes_per_s / factor,
        alone_bytes_per_s=link.alone_bytes_per_s / factor,
        latency_s=link.latency_s * factor,
        fits=tuple(_slower_fit(fit, factor) for fit in link.fits),
    )


def _slower_fit(fit: Fit, factor: float) -> Fit:
    return replace(
        fit,
        latency_s=fit.latency_s * factor,
        bytes_per_s=fit.bytes_per_s / factor,
        curve=tuple((nbytes, seconds * factor) for nbytes, seconds in fit.curve),
    )


def _slower_tier(tier: Tier, factor: float) -> Tier:
    return replace(tier, bytes_per_s=tier.bytes_per_s / factor, latency_s=tier.latency_s * factor)
