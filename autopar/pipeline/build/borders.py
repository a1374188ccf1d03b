"""What passes between stages: how long a cut's tensors occupy the links between two submeshes.

Every rank of the receiving submesh gets its own part of each tensor once, from ranks of the sending one
that take turns: so a submesh of d devices that splits what crosses among t of them takes in d / t times
its bytes.  The slower of the two sides counts, ranks sending and receiving at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autopar.ir.graph import Tensor
from autopar.ir.mesh import Mesh
from autopar.ir.placement import S, Sharding
from autopar.plans.pipeline_data import WorkerPlan
from autopar.pipeline.planner.table import Array
from cost_models.hardware import Hardware, Link


@dataclass(frozen=True, order=True)
class Border:
    """`devices` among `tiles` of which a tensor that crosses is divided."""

    devices: int
    tiles: int


def seconds(nbytes: float, source: Border, target: Border, link: Link) -> float:
    """One microbatch's transfer, without its latency."""
    taken = nbytes / target.tiles
    given = taken * target.devices / source.devices
    return max(link.sending(taken, target.devices), link.sending(given, source.devices))


def passing(
    crossing: Sequence[Sequence[Tensor]], borders: Sequence[Border], link: Link
) -> tuple[Array, Array]:
    """[cut, exit, entry] for outputs, and for their gradients."""
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
    """The slowest link between two workers, ranks being numbered host by host."""
    ranks, link = (*one.ranks, *two.ranks), hardware.intra_host.reaching(1)
    for devices, leaving in hardware.borders:
        if len({rank // devices for rank in ranks}) == 1:
            break
        link = leaving
    return link


def latency_s(link: Link, hardware: Hardware) -> float:
    """Seconds of a message of no bytes: the link's, and how late a stage finds the other's ranks.

    `hardware` is as its ranks see it while all of a host's are busy.
    """
    return link.latency_s + hardware.device.late_s


def name_of(hardware: Hardware, one: WorkerPlan, two: WorkerPlan) -> str:
    """What a profile calls that link; tiers count as what they are inside or beyond."""
    hosts = {rank // hardware.devices_per_host for rank in (*one.ranks, *two.ranks)}
    return "intra_host" if len(hosts) == 1 else "inter_host"


def tiles(form: Sharding, mesh: Mesh) -> int:
    """Among how many ranks a form divides a tensor."""
    return math.prod(
        size for size, kind in zip(mesh.sizes, form, strict=True) if isinstance(kind, S)
    )


def link_between(hardware: Hardware, devices: int) -> Link:
    """What joins neighbouring stages: between hosts, as soon as there are several hosts.

    Tiers inside a host count; few of all cuts lie on a border beyond hosts.
    """
    link = hardware.intra_host.reaching(1)
    for border, leaving in hardware.borders:
        if border < devices and border <= hardware.devices_per_host:
            link = leaving
    return link


def tiles_of(forms: Sequence[tuple[Tensor, int]]) -> int:
    """Of tensors and how many ranks divide each: what divides most bytes."""
    weights: dict[int, float] = {}
    for tensor, tiles in forms:
        weights[tiles] = weights.get(tiles, 0.0) + math.prod(tensor.shape)
    return max(weights, key=lambda tiles: (weights[tiles], tiles), default=1)
