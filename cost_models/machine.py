"""Data classes of a hardware profile: the device, the links between devices, and the host.

Profiles in TOML are parsed into `Hardware`; the operator and collective cost models read it.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from cost_models.curves import Curve
from cost_models.errors import CostModelError, ProfileError
from cost_models.exchanges import EXCHANGES
from cost_models.fits import Fit
from cost_models.names import DTYPES, KINDS, meant
from cost_models.ranges import RANGES, SECONDS, check_count

ALGORITHMS = ("ring", "tree", "hierarchical")
"""Collective algorithms that a profile may name; every communication library has the ring."""


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or one rank's share of a host's cores.

    `flops_per_s` is the peak by dtype name; the efficiencies are the fractions of the peaks that large
    operators reach.  `launch_s` is added to every operator call.  `overlap` is the fraction of
    communication that is hidden behind an equal amount of compute, for links without their own value.
    The first `cache_bytes` that an operator moves cost `cache_bytes_per_s`, the rest `bytes_per_s`;
    without a cache all bytes cost `bytes_per_s`.  `curves` are the fractions of this roofline that
    timed operators reached.

    Ranks are never equally fast.  `behind` is the time that a rank waits for slower ranks during a
    step, as a fraction of its own compute.  `late_s` is the extra time of a message that compute waits
    for, because its sender is late; for a collective it grows with the number of ranks (`lateness`).
    """

    name: str
    kind: str
    memory_bytes: float
    flops_per_s: Mapping[str, float]
    bytes_per_s: float
    matmul_efficiency: float = 1.0
    memory_efficiency: float = 1.0
    launch_s: float = 0.0
    overlap: float = 0.0
    cache_bytes: float = 0.0
    cache_bytes_per_s: float = 0.0
    curves: tuple[Curve, ...] = ()
    behind: float = 0.0
    late_s: float = 0.0

    @property
    def paced(self) -> Device:
        """The device with its speeds reduced by the time spent waiting for slower ranks (`behind`)."""
        slower = 1 + self.behind
        return replace(
            self,
            flops_per_s={dtype: peak / slower for dtype, peak in self.flops_per_s.items()},
            bytes_per_s=self.bytes_per_s / slower,
            cache_bytes_per_s=self.cache_bytes_per_s / slower,
            launch_s=self.launch_s * slower,
            behind=0.0,
        )


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a mesh axis' hierarchy: a number of ranks, or groups of ranks, and their link."""

    ranks: int
    bytes_per_s: float
    latency_s: float
    inside_host: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """The link between ranks, per direction and rank.  Fitted collectives override the ring formula."""

    bytes_per_s: float
    latency_s: float
    fits: tuple[Fit, ...] = ()
    kind: str = ""
    """Product name: NVLink 4, PCIe 4, InfiniBand NDR, Ethernet."""
    alone_bytes_per_s: float = 0.0
    """Bandwidth of one rank while no other rank of its host sends; 0 if no higher than `bytes_per_s`."""
    neighbours: int = 0
    """Number of devices to which each device is wired directly, sharing `bytes_per_s` among the wires;
    0: a switch gives a device its full bandwidth to any peer."""
    at_least: bool = False
    """Measured times did not rise with the bytes, so `bytes_per_s` is only a lower bound, from the
    largest message."""
    overlap: float | None = None
    """Fraction of gradient synchronisation on this link that is hidden behind an equal amount of
    compute; None: the device's `overlap`.  The cost that remains depends on the bytes, so a slow link
    hides a larger fraction of its time."""
    levels: tuple[Level, ...] = field(default=(), metadata={"derived": True})
    """Hierarchy of a mesh axis on which algorithms other than the ring are allowed; derived, never read
    from a profile."""
    algorithms: tuple[str, ...] = field(default=(), metadata={"derived": True})
    """Names of those algorithms."""

    def figures(self, name: str) -> Iterator[tuple[str, float, str]]:
        """Yield key, value and required range of every number of the link."""
        yield f"{name}.bytes_per_s", self.bytes_per_s, "positive"
        yield f"{name}.latency_s", self.latency_s, SECONDS
        yield f"{name}.alone_bytes_per_s", self.alone_bytes_per_s, "zero or more"
        yield f"{name}.neighbours", self.neighbours, "zero or more"
        if self.overlap is not None:
            yield f"{name}.overlap", self.overlap, "between 0 and 1"
        for fit in self.fits:
            yield f"{name}.fits.bytes_per_s", fit.bytes_per_s, "positive"
            yield f"{name}.fits.latency_s", fit.latency_s, SECONDS
            yield f"{name}.fits.ranks", fit.ranks, "two or more"
            yield f"{name}.fits.host_ranks", fit.host_ranks, "zero or more"
            yield f"{name}.fits.error", fit.error, "zero or more"
            before = (0.0, 0.0)
            for point in fit.curve:
                yield f"{name}.fits.curve: the bytes to {point}", point[0] - before[0], "positive"
                yield (
                    f"{name}.fits.curve: the rise to {point}",
                    point[1] - before[1],
                    "zero or more",
                )
                before = point

    def misnamed(self, name: str) -> Iterator[str]:
        """Yield an error message for each fit of an unknown collective and for each duplicate fit."""
        seen: set[tuple[object, ...]] = set()
        for fit in self.fits:
            if fit.collective not in EXCHANGES:
                yield (
                    f"{name}.fits: {fit.collective!r} is not a collective. "
                    f"{meant(fit.collective, EXCHANGES)}"
                )
            if (key := (fit.collective, fit.ranks, _busy(fit))) in seen:
                yield (
                    f"{name}.fits has two of {fit.collective} among {fit.ranks} ranks while "
                    f"{_busy(fit)} are busy; leave one out."
                )
            seen.add(key)

    def among(self, ranks: int) -> float:
        """Return bytes per second for each of `ranks` ranks of one host or rack that send at once.

        Links between hosts may be shared, such as the uplink of a rack: with fewer senders each gets
        more.  Raises `CostModelError` unless `ranks` is a whole number of 1 or more.
        """
        check_count("The ranks that send", ranks)
        return max(self.bytes_per_s, self.alone_bytes_per_s / ranks)

    def sending(self, nbytes: float, ranks: int) -> float:
        """Return the seconds that a message occupies the link, without latency, if `ranks` ranks send.

        If sends were measured, the fitted curve is used instead of the rate: the rate holds for the
        largest message, whereas a short one may pass the link's bottleneck in a single burst.  Raises
        `CostModelError` if `nbytes` is negative or NaN, or `ranks` is not a whole number of 1 or more.
        """
        rate = self.among(ranks)
        if not nbytes >= 0:
            raise CostModelError(f"A message of {nbytes} bytes makes no sense.")
        fit = next((fit for fit in self.fits if fit.collective == "send"), None)
        if fit is None:
            return nbytes / rate
        shared = fit.faster(rate / fit.bytes_per_s)
        return shared.seconds(nbytes) - shared.seconds(0.0)

    def reaching(self, others: int) -> Link:
        """Return the link of a device to `others` peers, with only the wires to those peers."""
        if not 0 < others < self.neighbours:
            return self
        return replace(self, bytes_per_s=self.bytes_per_s * others / self.neighbours)

    def shared_by(self, ranks: int) -> Link:
        """Return the link with one fit per collective and size: that nearest to `ranks` busy ranks."""
        nearest: dict[tuple[str, int], Fit] = {}
        for fit in self.fits:
            key = (fit.collective, fit.ranks)
            best = nearest.setdefault(key, fit)
            if abs(_busy(fit) - ranks) < abs(_busy(best) - ranks):
                nearest[key] = fit
        return replace(self, fits=tuple(nearest.values()))


@dataclass(frozen=True, slots=True)
class Tier:
    """The link between groups of `devices` consecutive devices, inside hosts or across hosts.

    `bytes_per_s` is each device's bandwidth when its whole group sends outwards at once: a leaf switch
    with 4:1 oversubscribed uplinks gives a quarter of the adapter's bandwidth.
    """

    devices: int
    bytes_per_s: float
    latency_s: float
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's share of a device that several ranks of a host use: factors on the device's numbers,
    and the delays that the ranks cause each other."""

    flops: float
    bytes: float
    launch: float
    overlap: float
    error: float = 0.0
    """Largest relative error of predicted operator times in the measurement."""
    behind: float = 0.0
    late_s: float = 0.0


@dataclass(frozen=True)
class Hardware:
    """A cluster: hosts of identical devices, the link inside a host, the link between hosts, and tiers.

    `algorithms` are those that the communication library chooses from: "ring", "tree", "hierarchical".

    `tiers` are further levels of the network: pairs of devices inside a host, pods of hosts.
    `shared` maps a number of ranks on the host to one rank's share of the device: ranks on one CPU
    slow each other down once they outnumber its `cores` (0: unknown), GPUs do not.
    """

    device: Device
    devices_per_host: int
    intra_host: Link
    inter_host: Link
    source: str
    date: str
    cores: int = 0
    shared: Mapping[int, Share] = field(default_factory=dict)
    tiers: tuple[Tier, ...] = ()
    algorithms: str = "ring"

    def check(self) -> None:
        """Raise `ProfileError` unless all numbers are finite and in range and all names are known."""
        name = self.device.name
        for key, value, wanted in self._figures():
            if not (abs(value) <= sys.float_info.max and RANGES[wanted](value)):
                raise ProfileError(f"Profile {name!r}: {key} is {value}, not {wanted}.")
        if "float32" not in self.device.flops_per_s:
            raise ProfileError(
                f"Profile {name!r} has no device.flops_per_s.float32, as which dtypes that it lacks are "
                "priced."
            )
        if self.device.cache_bytes and self.device.cache_bytes_per_s < self.device.bytes_per_s:
            raise ProfileError(f"Profile {name!r}: device.cache_bytes_per_s is below bytes_per_s.")
        if self.inter_host.neighbours:
            raise ProfileError(
                f"Profile {name!r}: inter_host.neighbours has no meaning, because hosts are "
                "joined by switches; leave it out."
            )
        sizes = [devices for devices, _ in self.borders]
        if len(set(sizes)) < len(sizes):
            raise ProfileError(
                f"Profile {name!r}: two of the tiers, or a tier and devices_per_host, have the same "
                "number of devices; each border has one link."
            )
        unknown = set(self.chosen_from) - set(ALGORITHMS)
        if unknown or "ring" not in self.chosen_from:
            raise ProfileError(
                f"Profile {name!r}: algorithms is {self.algorithms!r}; write 'ring', and what else "
                f"there is of {', '.join(ALGORITHMS[1:])}, with commas."
            )
        if not self.source or not self.date:
            raise ProfileError(f"Profile {name!r} must state its source and its date.")
        if not _is_date(self.date):
            raise ProfileError(f"Profile {name!r}: date is {self.date!r}; write it as 2026-11-27.")
        wrong = next(self._misnamed(), None)
        if wrong is not None:
            raise ProfileError(f"Profile {name!r}: {wrong}")

    @property
    def chosen_from(self) -> tuple[str, ...]:
        """The names in `algorithms` as a tuple."""
        return tuple(name.strip() for name in self.algorithms.split(","))

    @property
    def borders(self) -> tuple[tuple[int, Link], ...]:
        """Group sizes in consecutive devices, each with the link that leaves the group, ascending."""
        found = [(t.devices, Link(t.bytes_per_s, t.latency_s, kind=t.kind)) for t in self.tiers]
        found.append((self.devices_per_host, self.inter_host))
        return tuple(sorted(found, key=lambda border: border[0]))

    def device_shared_by(self, local_ranks: int) -> Device:
        """Return one rank's share of the device when `local_ranks` ranks run on a host.

        Raises `CostModelError` unless `local_ranks` is a whole number of 1 or more.
        """
        check_count("The ranks of a host", local_ranks)
        if not self.shared:
            return self.device
        known = max((n for n in self.shared if n <= local_ranks), default=min(self.shared))
        share = self.shared[known]
        # Ranks beyond the measured count use free cores, or divide the share of the measured ranks.
        crowd = max(1.0, local_ranks / max(known, self.cores))
        device = self.device
        return replace(
            device,
            memory_bytes=device.memory_bytes / local_ranks,
            flops_per_s={d: peak * share.flops / crowd for d, peak in device.flops_per_s.items()},
            bytes_per_s=device.bytes_per_s * share.bytes / crowd,
            cache_bytes_per_s=device.cache_bytes_per_s * share.bytes / crowd,
            launch_s=device.launch_s * share.launch * crowd,
            overlap=share.overlap,
            behind=share.behind,
            late_s=share.late_s,
        )

    def filled(self, local_ranks: int) -> Hardware:
        """Return the hardware for a mesh that uses only some of the `local_ranks` ranks of each host."""
        return replace(
            self,
            device=self.device_shared_by(local_ranks),
            intra_host=self.intra_host.shared_by(local_ranks),
            inter_host=self.inter_host.shared_by(local_ranks),
            cores=0,
            shared={},
        )

    def _misnamed(self) -> Iterator[str]:
        """Yield an error message for each unknown or duplicate name: the entry would have no effect."""
        if self.device.kind not in KINDS:
            wrong = f"device.kind {self.device.kind!r} is not a device of torch."
            yield f"{wrong} {meant(self.device.kind, KINDS)}"
        for dtype in self.device.flops_per_s:
            if dtype not in DTYPES:
                yield (
                    f"device.flops_per_s.{dtype} is not a dtype of torch. {meant(dtype, DTYPES)}"
                )
        seen: set[tuple[object, ...]] = set()
        for curve in self.device.curves:
            yield from curve.misnamed()
            if (key := (curve.operator, curve.dtype)) in seen:
                yield f"device.curves has two of {curve.operator} in {curve.dtype}; leave one out."
            seen.add(key)
        for name, link in (("intra_host", self.intra_host), ("inter_host", self.inter_host)):
            yield from link.misnamed(name)

    def _figures(self) -> Iterator[tuple[str, float, str]]:
        """Yield key, value and required range of every number of the profile."""
        device = self.device
        yield "devices_per_host", self.devices_per_host, "positive"
        yield "cores", self.cores, "zero or more"
        for key in ("memory_bytes", "bytes_per_s", "matmul_efficiency", "memory_efficiency"):
            yield f"device.{key}", getattr(device, key), "positive"
        for key in ("matmul_efficiency", "memory_efficiency", "overlap"):
            yield f"device.{key}", getattr(device, key), "between 0 and 1"
        for key in ("cache_bytes", "cache_bytes_per_s", "behind"):
            yield f"device.{key}", getattr(device, key), "zero or more"
        for key in ("launch_s", "late_s"):
            yield f"device.{key}", getattr(device, key), SECONDS
        for dtype, peak in device.flops_per_s.items():
            yield f"device.flops_per_s.{dtype}", peak, "positive"
        for number, curve in enumerate(device.curves):
            yield from curve.figures(f"device.curves[{number}]")
        yield from self.intra_host.figures("intra_host")
        yield from self.inter_host.figures("inter_host")
        for number, tier in enumerate(self.tiers):
            yield f"tiers[{number}].devices", tier.devices, "positive"
            yield f"tiers[{number}].bytes_per_s", tier.bytes_per_s, "positive"
            yield f"tiers[{number}].latency_s", tier.latency_s, SECONDS
        for ranks, share in self.shared.items():
            yield "the number of ranks of a share", ranks, "positive"
            for key in ("flops", "bytes", "launch"):
                yield f"shared.{ranks}.{key}", getattr(share, key), "positive"
            yield f"shared.{ranks}.overlap", share.overlap, "between 0 and 1"
            for key in ("error", "behind"):
                yield f"shared.{ranks}.{key}", getattr(share, key), "zero or more"
            yield f"shared.{ranks}.late_s", share.late_s, SECONDS


def _busy(fit: Fit) -> int:
    return fit.host_ranks or fit.ranks


def _is_date(text: str) -> bool:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True
