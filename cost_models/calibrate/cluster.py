"""Calibrates a cluster under ``torchrun``: its devices and links, with all ranks busy.

The ranks of each host measure the link inside it.  The link between hosts is measured by groups of the
ranks with equal local index, one from each host, all groups at the same time, as in training; and by
the whole cluster.
"""

from __future__ import annotations

import datetime
import os
import platform
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from cost_models.calibrate.effort import QUICK, Effort
from cost_models.calibrate.fit import fit_sustained
from cost_models.calibrate.measure import in_group, measure, overlap, sends, sends_each_way
from cost_models.calibrate.profile import (
    NOMINAL_ETHERNET,
    Times,
    device_of,
    link_of,
    operator_errors,
    spread,
)
from cost_models.curves import rounded
from cost_models.errors import CostModelError
from cost_models.machine import Hardware, Link

LIMIT_S = 600.0
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
"""Backends by the device of messages; ranks exchange their times in host memory."""


def is_launched() -> bool:
    """Return whether ``torchrun`` started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


@dataclass(frozen=True)
class Cluster:
    """A cluster of equal hosts, with ranks numbered host by host."""

    rank: int
    world: int
    per_host: int

    @classmethod
    def here(cls, group: int | None = None) -> Cluster:
        """Read the cluster from ``torchrun``'s environment.

        With `group`, that many consecutive ranks count as one host.  Raises `CostModelError` for hosts
        of different sizes, or groups that do not consist of whole hosts.
        """
        rank, world, per_host = (
            int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        )
        if group is not None:
            return cls._of_groups(rank, world, per_host, group)
        if world % per_host:
            raise CostModelError(
                f"{world} ranks on hosts of {per_host}: start as many processes on every host."
            )
        return cls(rank, world, per_host)

    @classmethod
    def _of_groups(cls, rank: int, world: int, per_host: int, group: int) -> Cluster:
        if group < 1 or group % per_host or world % group:
            raise CostModelError(
                f"Groups of {group} ranks: they must consist of whole hosts ({per_host} ranks "
                f"each) and divide all {world} ranks."
            )
        return cls(rank, world, group)

    @property
    def hosts(self) -> int:
        """The number of hosts."""
        return self.world // self.per_host

    @property
    def neighbour(self) -> int | None:
        """The rank on this host with which this one exchanges messages; the last of an odd number has
        none."""
        place = self.rank % self.per_host
        return self.rank - place + (place ^ 1) if place ^ 1 < self.per_host else None


def calibrate_cluster(
    quick: bool = False, group: int | None = None, base: Hardware | None = None
) -> Hardware:
    """Calibrate the cluster; every rank must call it, and all get the same profile.

    With `group`, that many consecutive ranks count as one host: the hosts of a rack, whose links to
    each other are faster than those between racks.  On accelerators only the links are measured, and
    `base` is the profile for everything else.  Raises `CostModelError` for hosts of different sizes,
    for groups that split hosts, if accelerators have no `base`, or if `base` is given without
    accelerators or is a CPU's.
    """
    cluster = Cluster.here(group)
    effort = replace(QUICK if quick else Effort(), device=_kind(base))
    torch.set_num_threads(1)
    if effort.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(BACKENDS[effort.device], timeout=datetime.timedelta(seconds=LIMIT_S))
    try:
        return _profile(cluster, effort) if base is None else linked(base, cluster, effort)
    finally:
        dist.destroy_process_group()


def _kind(base: Hardware | None) -> str:
    """Return the kind of device that holds the messages; check that it matches `base`."""
    if not torch.cuda.is_available():
        if base is None:
            return "cpu"
        raise CostModelError(
            f"{base.device.name} is a profile to start from where there are accelerators, and PyTorch "
            "finds none here. Leave it out: a CPU's operators are timed."
        )
    if base is None or base.device.kind == "cpu":
        raise CostModelError(
            "Operators are timed on CPUs only; of accelerators the links are measured. Pass their "
            "profile to start from, such as --hardware h100 (`autopar hardware` lists them)."
        )
    return "cuda"


def _profile(cluster: Cluster, effort: Effort) -> Hardware:
    measured = measure(effort, apart=True)
    inside, across = _inside(cluster, effort), _across(cluster, effort)
    device = replace(
        device_of(measured),
        overlap=_hidden(inside, across, otherwise=0.0),
        behind=rounded(measured.waiting.behind),
        late_s=rounded(measured.waiting.late_s),
    )
    return Hardware(
        replace(device, memory_bytes=rounded(device.memory_bytes / cluster.per_host)),
        cluster.per_host,
        inside or across or NOMINAL_ETHERNET,
        across or NOMINAL_ETHERNET,
        _source(cluster, spread(operator_errors(device, measured))),
        datetime.date.today().isoformat(),
    )


def linked(base: Hardware, cluster: Cluster, effort: Effort) -> Hardware:
    """Return the profile with the links and the overlap measured on this cluster.

    Its tiers are removed, as they are not measured.
    """
    ranks = f"ranks, {dist.get_backend_config().split(':')[-1]}"
    inside, across = _inside(cluster, effort), _across(cluster, effort)
    return replace(
        base,
        device=replace(base.device, overlap=_hidden(inside, across, otherwise=base.device.overlap)),
        devices_per_host=cluster.per_host,
        intra_host=replace(inside, kind=ranks) if inside else base.intra_host,
        inter_host=replace(across, kind=ranks) if across else base.inter_host,
        tiers=(),
        source=(
            f"links measured by autopar calibrate under torchrun on {cluster.hosts} "
            f"{platform.machine()} hosts of {cluster.per_host} ranks, all of them busy ({ranks}); the "
            f"rest: {base.source}"
        ),
        date=datetime.date.today().isoformat(),
    )


def _hidden(*links: Link | None, otherwise: float) -> float:
    """Return the overlap of the first measured link; it is used for links without a measurement."""
    found = (link.overlap for link in links if link is not None)
    return next((each for each in found if each is not None), otherwise)


def _inside(cluster: Cluster, effort: Effort) -> Link | None:
    """Return the link between ranks of one host; None if a host has only one."""
    size = cluster.per_host
    if size == 1:
        return None
    group = _joined([list(range(first, first + size)) for first in range(0, cluster.world, size)])
    link = replace(
        link_of(_collectives(cluster, group, effort)), overlap=rounded(overlap(effort, group))
    )
    return with_sends(link, sends(cluster.neighbour, effort), cluster.world)


def _across(cluster: Cluster, effort: Effort) -> Link | None:
    """Return the link between hosts; None if there is only one."""
    size, hosts = cluster.per_host, cluster.hosts
    if hosts == 1:
        return None
    group = _joined([list(range(place, cluster.world, size)) for place in range(size)])
    times = _collectives(cluster, group, effort)
    if size > 1:
        times += _collectives(cluster, dist.group.WORLD, effort)
    host, place = divmod(cluster.rank, size)
    peer = cluster.rank + size * (1 - 2 * (host % 2)) if host ^ 1 < hosts else None
    link = replace(link_of(times), overlap=rounded(overlap(effort, group)))
    link = with_sends(link, sends_each_way(peer, host % 2 == 0, effort), cluster.world)
    if size == 1:
        return link
    return with_alone(link, sends_each_way(None if place else peer, host % 2 == 0, effort), size)


def _joined(groups: list[list[int]]) -> Any:
    """Return this rank's group among several disjoint ones."""
    mine, _ = dist.new_subgroups_by_enumeration(groups)
    return mine


def _collectives(cluster: Cluster, group: Any, effort: Effort) -> list[Times]:
    """Measure collectives in all ranks' groups at the same time."""
    found = in_group(group, dist.get_world_size(group), effort)
    return [Times(kind, ranks, cluster.world, seconds) for (kind, ranks), seconds in found.items()]


def with_sends(link: Link, seconds: dict[int, float], busy: int) -> Link:
    """Return the link with latency and bandwidth of point-to-point messages, and a fit for them.

    Measured collectives keep their own fits.  `busy` is the number of ranks that sent at the same time.
    """
    times = Times("send", 2, busy, seconds)
    fit = times.judged(times.fit())
    return replace(
        link,
        bytes_per_s=fit.bytes_per_s,
        latency_s=fit.latency_s,
        at_least=fit.at_least,
        fits=(*link.fits, fit),
    )


def with_alone(link: Link, seconds: dict[int, float], ranks: int) -> Link:
    """Return the link with the bandwidth of one rank that sends alone on its host.

    It is at most the sum of the shares of all `ranks` of the host.  A higher measurement is an artefact:
    a rate limiter may let the first bytes of a burst pass.
    """
    line = fit_sustained(list(seconds), list(seconds.values()))
    alone = rounded(min(line.per_s, ranks * link.bytes_per_s))
    return replace(link, alone_bytes_per_s=alone) if alone > link.bytes_per_s else link


def _source(cluster: Cluster, errors: str) -> str:
    return (
        f"measured by autopar calibrate under torchrun on {cluster.hosts} {platform.machine()} hosts of "
        f"{cluster.per_host} ranks, all of them busy, one thread per rank, gloo; predictions are off by "
        f"(median, worst) {errors} for operators"
    )
