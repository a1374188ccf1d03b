"""Data classes of a hardware profile: the device, the links between devices, and the host.

Profiles in TOML are parsed into `Hardware`; the operator and collective cost models read it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from cost_models.curves import Curve
from cost_models.errors import ProfileError
from cost_models.links import Level, Link, Tier
from cost_models.modes import Mode
from cost_models.names import DTYPES, KINDS, meant
from cost_models.ranges import RANGES, SECONDS, check_count, is_date
from cost_models.shapes import ShapeEfficiency

__all__ = ["Device", "Hardware", "Level", "Link", "Share", "Tier"]

ALGORITHMS = ("ring", "tree", "hierarchical")
"""Collective algorithms that a profile may name; every communication library has the ring."""


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or one rank's share of a host's cores.

    `flops_per_s` is the peak by dtype name; the efficiencies are the fractions of the peaks that large
    operators reach.  `products` and `attention` give them by shape, for matrix products and for fused
    attention; without them both reach `matmul_efficiency`.  `overlap` is the fraction of
    communication that is hidden behind an equal amount of compute, for links without their own value.
    The first `cache_bytes` that an operator moves cost `cache_bytes_per_s`, the rest `bytes_per_s`;
    without a cache all bytes cost `bytes_per_s`.  `curves` are the fractions of this roofline that
    timed operators reached.

    `launch_s` is added to every operator call.  A host issues operators ahead of the device: each takes
    at least `issue_s`, the host's time for one kernel, which longer kernels hide.  If that is given,
    views take no time of their own.  `lays_out` is whether messages of collectives are copied into
    buffers and out of them; software whose tensors have the layout of the message need not.

    Ranks are never equally fast.  `behind` is the time that a rank waits for slower ranks during a
    step, as a fraction of its own compute.  `late_s` is the extra time of a message that compute waits
    for, because its sender is late; for a collective it grows with the number of ranks (`lateness`).
    `expert_imbalance` is a property of the models that run: if the experts of a mixture are split over
    ranks, the busiest rank has so many rows more than the mean, as a fraction of it.
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
    issue_s: float = 0.0
    lays_out: bool = True
    expert_imbalance: float = 0.0
    products: ShapeEfficiency | None = None
    attention: ShapeEfficiency | None = None

    @property
    def paced(self) -> Device:
        """The device with its speeds reduced by the time spent waiting for slower ranks (`behind`)."""
        return replace(self.slower(1 + self.behind), behind=0.0)

    def slower(self, factor: float) -> Device:
        """Return the device that takes `factor` times as long for everything that it computes."""
        return replace(
            self,
            flops_per_s={dtype: peak / factor for dtype, peak in self.flops_per_s.items()},
            bytes_per_s=self.bytes_per_s / factor,
            cache_bytes_per_s=self.cache_bytes_per_s / factor,
            launch_s=self.launch_s * factor,
            issue_s=self.issue_s * factor,
        )


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
    `modes` are ways to run a step that cost other times than eager PyTorch; `in_mode` applies one.
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
    modes: Mapping[str, Mode] = field(default_factory=dict)

    def in_mode(self, name: str) -> Hardware:
        """Return the hardware with the times of one of its modes.

        Raises `ProfileError` if the profile has no mode of this name.
        """
        if name not in self.modes:
            known = f"Known: {', '.join(self.modes)}." if self.modes else "It has none."
            raise ProfileError(
                f"Profile {self.device.name!r} has no mode {name!r}. {known} Write one as a table "
                f"[modes.{name}] of the profile."
            )
        mode = self.modes[name]
        source = f"{self.source}; mode {name}: {mode.source}"
        return replace(self, device=replace(self.device, **mode.changes()), modes={}, source=source)

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
        for where, source, date in self._origins():
            if not source or not date:
                raise ProfileError(f"Profile {name!r}{where} must state its source and its date.")
            if not is_date(date):
                raise ProfileError(
                    f"Profile {name!r}{where}: date is {date!r}; write it as 2026-11-27."
                )
        wrong = next(self._misnamed(), None)
        if wrong is not None:
            raise ProfileError(f"Profile {name!r}: {wrong}")

    def _origins(self) -> Iterator[tuple[str, str, str]]:
        """Yield place, source and date of everything that states them."""
        yield "", self.source, self.date
        device = self.device
        for key, shaped in (("products", device.products), ("attention", device.attention)):
            if shaped is not None:
                yield f": device.{key}", shaped.source, shaped.date
        for name, mode in self.modes.items():
            yield f": modes.{name}", mode.source, mode.date

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
            issue_s=device.issue_s * share.launch * crowd,
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
        for key in ("cache_bytes", "cache_bytes_per_s", "behind", "expert_imbalance"):
            yield f"device.{key}", getattr(device, key), "zero or more"
        for key in ("launch_s", "late_s", "issue_s"):
            yield f"device.{key}", getattr(device, key), SECONDS
        for dtype, peak in device.flops_per_s.items():
            yield f"device.flops_per_s.{dtype}", peak, "positive"
        for number, curve in enumerate(device.curves):
            yield from curve.figures(f"device.curves[{number}]")
        for key, shaped in (("products", device.products), ("attention", device.attention)):
            if shaped is not None:
                yield from shaped.figures(f"device.{key}")
        for name, mode in self.modes.items():
            yield from mode.figures(f"modes.{name}")
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
