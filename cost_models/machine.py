"""The values of a hardware profile: a device, the links that join devices, and a host of them."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from cost_models.curves import Curve
from cost_models.errors import CostModelError, ProfileError
from cost_models.fits import Fit
from cost_models.names import COLLECTIVES, DTYPES, KINDS, meant
from cost_models.ranges import RANGES, SECONDS, check_count

ALGORITHMS = ("ring", "tree", "hierarchical")
"""Of collectives; every library has the first."""


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or one rank's share of a host's cores.

    `flops_per_s` is the peak by dtype name; the efficiencies are the share of the peak that large
    operators reach.  `launch_s` is spent on every operator call; `overlap` is the share of
    communication beside as much compute that costs nothing, on links that do not say it themselves.
    The first `cache_bytes` that an operator moves go at `cache_bytes_per_s`, the rest at
    `bytes_per_s`; without a cache all of them do.  `curves` say how much of this roofline's speed the
    operators reach that were timed.

    Ranks are never equally fast.  `behind` is the share of its own compute for which a rank waits for
    slower ones in the course of a step; `late_s` is what a message takes besides that compute waits
    for, as its sender comes late; what a collective does grows with its ranks (`lateness`).
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
        """The device as fast as a step sees it, in which every rank waits for slower ones."""
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
    """One stretch of a mesh axis: so many ranks, or groups of them, and what joins these."""

    ranks: int
    bytes_per_s: float
    latency_s: float
    inside_host: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """What joins ranks: per direction and rank.  Fitted collectives override the ring formula."""

    bytes_per_s: float
    latency_s: float
    fits: tuple[Fit, ...] = ()
    kind: str = ""
    """What it is called: NVLink 4, PCIe 4, InfiniBand NDR, Ethernet."""
    alone_bytes_per_s: float = 0.0
    """Of one rank while no other of its host sends, where that is more than its share; 0: it is not."""
    neighbours: int = 0
    """Devices to which each has links of its own, among which `bytes_per_s` is divided; 0: a switch
    gives a device all of it, whoever it talks to."""
    at_least: bool = False
    """Times did not rise with the bytes: `bytes_per_s` is what the largest message proves."""
    overlap: float | None = None
    """The share of gradients' sums on this link, beside as much compute, that costs nothing; None: the
    device's own.  What they cost goes with their bytes, so a slow link hides more of its time."""
    levels: tuple[Level, ...] = field(default=(), metadata={"derived": True})
    """Of a mesh axis, where algorithms besides the ring may be taken; no profile writes this."""
    algorithms: tuple[str, ...] = field(default=(), metadata={"derived": True})
    """These, by name."""

    def figures(self, name: str) -> Iterator[tuple[str, float, str]]:
        """Key and value of every figure, and the range that it must be in."""
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
        """Fits of collectives that there are not, and two of the same."""
        seen: set[tuple[object, ...]] = set()
        for fit in self.fits:
            if fit.collective not in COLLECTIVES:
                yield (
                    f"{name}.fits: {fit.collective!r} is no collective. "
                    f"{meant(fit.collective, COLLECTIVES)}"
                )
            if (key := (fit.collective, fit.ranks, _busy(fit))) in seen:
                yield (
                    f"{name}.fits has two of {fit.collective} among {fit.ranks} ranks while "
                    f"{_busy(fit)} are busy; leave one out."
                )
            seen.add(key)

    def among(self, ranks: int) -> float:
        """Bytes per second of each of so many ranks of a host, or of a rack, that send at the same time.

        What joins hosts may be shared, such as the uplink of a rack: few ranks have more of it each.
        Raises `CostModelError` unless the ranks are a whole number of 1 or more.
        """
        check_count("The ranks that send", ranks)
        return max(self.bytes_per_s, self.alone_bytes_per_s / ranks)

    def sending(self, nbytes: float, ranks: int) -> float:
        """Seconds for which a message occupies the link beside its latency, where so many ranks send.

        Messages that were measured count by their size: a rate is that of the largest, and what limits a
        link may let as many bytes through at once as a short message has.  Raises `CostModelError` where
        bytes are negative or no number, or the ranks no whole number of 1 or more.
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
        """The link as a device finds it that talks to so many others: by its wires to these only."""
        if not 0 < others < self.neighbours:
            return self
        return replace(self, bytes_per_s=self.bytes_per_s * others / self.neighbours)

    def shared_by(self, ranks: int) -> Link:
        """The link while `ranks` ranks use the host: only the fits measured nearest to that."""
        nearest: dict[tuple[str, int], Fit] = {}
        for fit in self.fits:
            key = (fit.collective, fit.ranks)
            best = nearest.setdefault(key, fit)
            if abs(_busy(fit) - ranks) < abs(_busy(best) - ranks):
                nearest[key] = fit
        return replace(self, fits=tuple(nearest.values()))


@dataclass(frozen=True, slots=True)
class Tier:
    """What joins groups of so many consecutive devices, inside hosts or beyond them.

    `bytes_per_s` is each device's share when all of its group talk outwards at once: a leaf switch whose
    uplinks are oversubscribed four to one gives a quarter of the adapter's.
    """

    devices: int
    bytes_per_s: float
    latency_s: float
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """The device as each of some ranks on one host sees it: factors on its figures, and what ranks do
    to each other."""

    flops: float
    bytes: float
    launch: float
    overlap: float
    error: float = 0.0
    """The largest relative error of predicted operator times where this was measured."""
    behind: float = 0.0
    late_s: float = 0.0


@dataclass(frozen=True)
class Hardware:
    """A host of equal devices, the link inside it, the link between hosts, and what lies beyond.

    `algorithms` are those that the communication library chooses from: "ring", "tree", "hierarchical".

    `tiers` are other borders: pairs of devices inside a host, pods of hosts.
    `shared` gives, per number of ranks that share the host, one rank's share of the device: ranks on
    one CPU slow each other down once they are more than its `cores` (0: not known), GPUs do not.
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
        """Raise `ProfileError` unless every figure is finite and in its range."""
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
                f"Profile {name!r}: inter_host.neighbours means nothing, as hosts are joined by "
                "switches; leave it out."
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
        """The algorithms' names."""
        return tuple(name.strip() for name in self.algorithms.split(","))

    @property
    def borders(self) -> tuple[tuple[int, Link], ...]:
        """Groups of so many consecutive devices and the link that leaves them, narrow ones first."""
        found = [(t.devices, Link(t.bytes_per_s, t.latency_s, kind=t.kind)) for t in self.tiers]
        found.append((self.devices_per_host, self.inter_host))
        return tuple(sorted(found, key=lambda border: border[0]))

    def device_shared_by(self, local_ranks: int) -> Device:
        """The device as one of `local_ranks` ranks on a host sees it.

        Raises `CostModelError` unless these are a whole number of 1 or more.
        """
        check_count("The ranks of a host", local_ranks)
        if not self.shared:
            return self.device
        known = max((n for n in self.shared if n <= local_ranks), default=min(self.shared))
        share = self.shared[known]
        # Ranks beyond the measured count find free cores, or share what the measured ones had.
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
        """The same for meshes that are only a part of the `local_ranks` ranks on each host."""
        return replace(
            self,
            device=self.device_shared_by(local_ranks),
            intra_host=self.intra_host.shared_by(local_ranks),
            inter_host=self.inter_host.shared_by(local_ranks),
            cores=0,
            shared={},
        )

    def _misnamed(self) -> Iterator[str]:
        """What names nothing, or something that was spoken of before: it would count for nothing."""
        if self.device.kind not in KINDS:
            wrong = f"device.kind {self.device.kind!r} is no device of torch's."
            yield f"{wrong} {meant(self.device.kind, KINDS)}"
        for dtype in self.device.flops_per_s:
            if dtype not in DTYPES:
                yield f"device.flops_per_s.{dtype} is no dtype of torch's. {meant(dtype, DTYPES)}"
        seen: set[tuple[object, ...]] = set()
        for curve in self.device.curves:
            yield from curve.misnamed()
            if (key := (curve.operator, curve.dtype)) in seen:
                yield f"device.curves has two of {curve.operator} in {curve.dtype}; leave one out."
            seen.add(key)
        for name, link in (("intra_host", self.intra_host), ("inter_host", self.inter_host)):
            yield from link.misnamed(name)

    def _figures(self) -> Iterator[tuple[str, float, str]]:
        """Key and value of every figure, and the range that it must be in."""
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
