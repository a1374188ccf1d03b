"""Transfer times between stages: how long a cut's tensors occupy the links between two submeshes.

Every rank of the receiving submesh gets its own shard of each tensor once.  The ranks of the sending
submesh take turns.  So a submesh of d devices that divides a tensor into t shards receives d / t times
its bytes.  The slower of the two sides counts; all ranks send and receive at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autopar.ir.graph import Tensor
from autopar.ir.mesh import Mesh
from autopar.ir.placement import S, Sharding
from autopar.pipeline.planner.table import Array
from autopar.plans.pipeline_data import WorkerPlan
from cost_models.hardware import Hardware, Link


@dataclass(frozen=True, order=True)
class Border:
    """A submesh of `devices` devices that divides a crossing tensor into `tiles` shards."""

    devices: int
    tiles: int


def seconds(nbytes: float, source: Border, target: Border, link: Link) -> float:
    """Return the seconds of one microbatch's transfer, without latency."""
    taken = nbytes / target.tiles
    given = taken * target.devices / source.devices
    return max(link.sending(taken, target.devices), link.sending(given, source.devices))


def passing(
    crossing: Sequence[Sequence[Tensor]], borders: Sequence[Border], link: Link
) -> tuple[Array, Array]:
    """Return seconds [cut, exit, entry] of activations, and of their gradients."""
    forward = [sum(t.nbytes for t in tensors) for tensors in crossing]
    back = [sum(t.nbytes for t in tensors if t.differentiable) for tensors in crossing]
    every = {
        nbytes: np.array([[seconds(nbytes, a, b, link) for b in borders] for a in borders])
        for nbytes in {*forward, *back}
    }
    shape = (len(crossing), len(borders), len(borders))
    return (
        np.array([every[n] for n in forward]).reshape(shape),
        np.array([every[n].T for n in back]).reshape(shape),
    )


def link_of(hardware: Hardware, one: WorkerPlan, two: WorkerPlan) -> Link:
    """Return the slowest link between two workers; ranks are numbered host by host."""
    ranks, link = (*one.ranks, *two.ranks), hardware.intra_host.reaching(1)
    for devices, leaving in hardware.borders:
        if len({rank // devices for rank in ranks}) == 1:
            break
        link = leaving
    return link


def latency_s(link: Link, hardware: Hardware) -> float:
    """Return the seconds of an empty message: the link's latency, and the wait for ranks that are late.

    `hardware` is the profile for fully used hosts.
    """
    return link.latency_s + hardware.device.late_s


def name_of(hardware: Hardware, one: WorkerPlan, two: WorkerPlan) -> str:
    """Return the profile's name of that link; tiers count as intra-host or inter-host."""
    hosts = {rank // hardware.devices_per_host for rank in (*one.ranks, *two.ranks)}
    return "intra_host" if len(hosts) == 1 else "inter_host"


def tiles(form: Sharding, mesh: Mesh) -> int:
    """Return the number of shards into which a sharding divides a tensor."""
    return math.prod(
        size for size, kind in zip(mesh.sizes, form, strict=True) if isinstance(kind, S)
    )


def link_between(hardware: Hardware, devices: int) -> Link:
    """Return the link between neighbouring stages: the one between hosts if there are several hosts.

    Tiers inside a host count.  Tiers of several hosts do not, since few cuts lie on their borders.
    """
    link = hardware.intra_host.reaching(1)
    for border, leaving in hardware.borders:
        if border < devices and border <= hardware.devices_per_host:
            link = leaving
    return link


def tiles_of(forms: Sequence[tuple[Tensor, int]]) -> int:
    """Return the number of shards that applies to most elements, given pairs (tensor, shards)."""
    weights: dict[int, float] = {}
    for tensor, tiles in forms:
        weights[tiles] = weights.get(tiles, 0.0) + math.prod(tensor.shape)
    return max(weights, key=lambda tiles: (weights[tiles], tiles), default=1)
