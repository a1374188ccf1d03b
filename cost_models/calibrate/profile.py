"""Builds a hardware profile from measurements, with the errors of its predictions against them."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from cost_models.calibrate.fit import (
    SMALLEST_S,
    fit_line,
    fit_rates,
    fit_slopes,
    fit_sustained,
    rate,
    relative_errors,
    rising,
)
from cost_models.calibrate.measure import Measured
from cost_models.calibrate.operators import ITEMSIZE
from cost_models.collectives import ring_terms
from cost_models.curves import Curve, rounded
from cost_models.fits import Fit
from cost_models.machine import Device, Hardware, Link, Share
from cost_models.ops import op_seconds, reached

NOMINAL_ETHERNET = Link(125e6, 1e-4, kind="Ethernet 1 Gbit/s, assumed")
"""The link between hosts is not measured locally: gigabit Ethernet is assumed and labelled so."""
CACHES = tuple(2**exponent for exponent in range(18, 28))
"""Candidate cache sizes in bytes."""


@dataclass(frozen=True)
class Times:
    """Seconds of one kind of collective among `ranks` of `host_ranks` busy ranks, by bytes."""

    collective: str
    ranks: int
    host_ranks: int
    seconds: Mapping[int, float]

    def fit(self) -> Fit:
        """Return the alpha-beta line, and the measured times made non-decreasing in the bytes."""
        sizes, seconds = zip(*sorted(self.seconds.items()), strict=True)
        line = fit_sustained(sizes, seconds)
        return Fit(
            self.collective,
            self.ranks,
            rounded(line.latency_s),
            rounded(line.per_s),
            self.host_ranks,
            at_least=line.at_least,
            curve=tuple(zip(sizes, map(rounded, rising(seconds)), strict=True)),
        )

    def judged(self, fit: Fit) -> Fit:
        """Return the fit with the largest relative error of its line."""
        return replace(fit, error=rounded(max(self.errors_of(fit))))

    def errors_of(self, fit: Fit) -> list[float]:
        """Return the relative errors of a fitted line."""
        predicted = [fit.latency_s + nbytes / fit.bytes_per_s for nbytes in self.seconds]
        return relative_errors(predicted, self.seconds.values())


def profile(found: Mapping[int, Measured]) -> Hardware:
    """Return a machine's profile, from measurements by number of simultaneous processes."""
    alone = found[1]
    groups = {count: group for count, group in found.items() if count > 1}
    fewest = groups[min(groups)]
    times = list(_times(groups))
    hardware = Hardware(
        device=replace(device_of(alone), overlap=rounded(fewest.overlap)),
        devices_per_host=64,
        intra_host=link_of(times),
        inter_host=NOMINAL_ETHERNET,
        source="measured",
        date=datetime.date.today().isoformat(),
        cores=_cores(),
        shared=_shares(found),
    )
    return _with_errors(hardware, found, times)


def device_of(alone: Measured) -> Device:
    """Return the device of one rank."""
    launch_s = rounded(alone.tiny_s / 2)
    flops_per_s = {
        dtype: rounded(fit_line([6.0 * n**3 for n in by_n], list(by_n.values())).per_s)
        for dtype, by_n in alone.matmul_s.items()
    }
    nowhere = Device("cpu", "cpu", _memory_bytes(), flops_per_s, 1.0, launch_s=launch_s)
    devices = [_with_memory(nowhere, cache_bytes, alone) for cache_bytes in CACHES]
    device = min(devices, key=lambda device: sum(_elementwise_errors(device, alone)))
    return replace(device, curves=tuple(_curves(device, alone)))


def _curves(device: Device, alone: Measured) -> Iterator[Curve]:
    """Yield the fraction of this roofline that each timed operator reaches."""
    by_operator: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for amount, seconds in alone.operators.items():
        there = op_seconds(amount.flops, amount.nbytes, amount.dtype, device)
        back = op_seconds(amount.backward_flops, 2 * amount.nbytes, amount.dtype, device)
        shares = (
            rounded(reached(there, seconds["forward"], device)),
            rounded(reached(back, seconds["backward"], device)),
        )
        by_operator.setdefault((amount.operator, amount.dtype), []).append((amount.nbytes, *shares))
    for (operator, dtype), rows in by_operator.items():
        sizes, forward, backward = zip(*sorted(rows), strict=True)
        points = (tuple(zip(sizes, shares, strict=True)) for shares in (forward, backward))
        yield Curve(operator, dtype, *points)


def _with_memory(device: Device, cache_bytes: int, alone: Measured) -> Device:
    """Return the device with the bandwidths inside and beyond a cache of this size.

    They are fitted by `ops.op_seconds`' formula: an elementwise product moves three tensors in the
    forward and is priced with six in the backward.
    """
    moved = [(3 * nbytes, 6 * nbytes) for nbytes in alone.elementwise_s]
    cached = [float(sum(min(part, cache_bytes) for part in parts)) for parts in moved]
    beyond = [sum(parts) - inside for parts, inside in zip(moved, cached, strict=True)]
    seconds = [s - 2 * device.launch_s for s in alone.elementwise_s.values()]
    least = [max(s, 0.1 * s0) for s, s0 in zip(seconds, alone.elementwise_s.values(), strict=True)]
    in_cache, in_memory = fit_rates([cached, beyond], least)
    if not any(beyond) or in_memory > in_cache:
        in_memory = in_cache = fit_rates([[sum(parts) for parts in moved]], least)[0]
    return replace(
        device,
        bytes_per_s=rounded(in_memory),
        cache_bytes=float(cache_bytes),
        cache_bytes_per_s=rounded(in_cache),
    )


def _shares(found: Mapping[int, Measured]) -> dict[int, Share]:
    """Return one rank's share of the device by number of ranks; it never grows with more ranks."""
    alone, first = found[1], found[min(count for count in found if count > 1)]
    shares = {1: Share(flops=1.0, bytes=1.0, launch=1.0, overlap=rounded(first.overlap))}
    least = shares[1]
    for count in sorted(count for count in found if count > 1):
        seen = _share(found[count], alone)
        least = Share(
            flops=min(seen.flops, least.flops),
            bytes=min(seen.bytes, least.bytes),
            launch=max(seen.launch, least.launch),
            overlap=seen.overlap,
            behind=seen.behind,
            late_s=seen.late_s,
        )
        shares[count] = least
    return shares


def _share(group: Measured, alone: Measured) -> Share:
    """Return the measured share of the device of each process in a group."""
    matrices = sorted(next(iter(alone.matmul_s.values())))[-2:]
    return Share(
        flops=rounded(
            median(
                by_n[n] / group.matmul_s[dtype][n]
                for dtype, by_n in alone.matmul_s.items()
                for n in matrices
            )
        ),
        bytes=rounded(median(s / group.elementwise_s[n] for n, s in alone.elementwise_s.items())),
        launch=rounded(group.tiny_s / alone.tiny_s),
        overlap=rounded(group.overlap),
        behind=rounded(group.waiting.behind),
        late_s=rounded(group.waiting.late_s),
    )


def _times(groups: Mapping[int, Measured]) -> Iterator[Times]:
    for count, group in groups.items():
        for (kind, ranks), by_size in group.collectives.items():
            yield Times(kind, ranks, count, by_size)


def link_of(times: list[Times]) -> Link:
    """Return a link with a fit per kind, ranks and busy ranks; the ring formula is for other counts."""
    fits = _gather_below_reduce([one.fit() for one in times])
    fits = [t.judged(fit) for fit, t in zip(fits, times, strict=True)]
    terms = [
        (*ring_terms(one.collective, nbytes, one.ranks), seconds)
        for one in times
        for nbytes, seconds in one.seconds.items()
    ]
    messages, nbytes, seconds = zip(*terms, strict=True)
    latency_s, slope = fit_slopes([messages, nbytes], seconds)
    bytes_per_s, at_least = rate(slope, nbytes, seconds)
    return Link(
        rounded(bytes_per_s),
        rounded(max(latency_s, SMALLEST_S)),
        tuple(fits),
        "processes, gloo",
        at_least=at_least,
    )


def _gather_below_reduce(fits: list[Fit]) -> list[Fit]:
    """Make all-reduces at least as slow as all-gathers, which they contain.

    If small messages suggest otherwise, it is noise, and would make planners reduce zero-filled tensors
    instead of gathering shards.
    """
    gathers = {(f.ranks, f.host_ranks): f for f in fits if f.collective == "all_gather"}
    return [_at_least(f, gathers[f.ranks, f.host_ranks]) for f in fits]


def _at_least(fit: Fit, gather: Fit) -> Fit:
    if fit.collective != "all_reduce":
        return fit
    slower = min(fit, gather, key=lambda one: one.bytes_per_s)
    return replace(
        fit,
        latency_s=max(fit.latency_s, gather.latency_s),
        bytes_per_s=slower.bytes_per_s,
        at_least=slower.at_least,
        curve=tuple((n, max(s, gather.seconds(n))) for n, s in fit.curve),
    )


def _with_errors(
    hardware: Hardware, found: Mapping[int, Measured], times: Sequence[Times]
) -> Hardware:
    """Return the profile with its prediction errors, also described in its source."""
    operators = {
        count: operator_errors(hardware.device_shared_by(count), group)
        for count, group in found.items()
    }
    collectives = [
        error
        for one, fit in zip(times, hardware.intra_host.fits, strict=True)
        for error in one.errors_of(fit)
    ]
    return replace(
        hardware,
        shared={
            count: replace(share, error=rounded(max(operators[count])))
            for count, share in hardware.shared.items()
        },
        source=(
            f"measured by autopar calibrate on a {hardware.cores}-core {platform.machine()} machine, "
            "one thread per rank, gloo; predictions are off by (median, worst) "
            f"{spread(operators[1])} for operators of one rank, "
            f"{spread(operators[max(operators)])} of {max(operators)} ranks, {spread(collectives)} "
            "for collectives; between hosts gigabit Ethernet is assumed"
        ),
    )


def spread(errors: Sequence[float]) -> str:
    """Return median and maximum as text."""
    return f"{median(errors):.0%}, {max(errors):.0%}"


def operator_errors(device: Device, measured: Measured) -> list[float]:
    """Return the relative errors for matrix products and elementwise operators."""
    return _elementwise_errors(device, measured) + _matmul_errors(device, measured)


def _elementwise_errors(device: Device, measured: Measured) -> list[float]:
    predicted = [_trained(0, 3 * n, "float32", device, "mul") for n in measured.elementwise_s]
    return relative_errors(predicted, measured.elementwise_s.values())


def _matmul_errors(device: Device, measured: Measured) -> list[float]:
    return [
        error
        for dtype, by_n in measured.matmul_s.items()
        for error in relative_errors(
            [_trained(2 * n**3, 3 * n**2 * ITEMSIZE[dtype], dtype, device, "linear") for n in by_n],
            by_n.values(),
        )
    ]


def _trained(flops: float, nbytes: float, dtype: str, device: Device, op: str) -> float:
    """Return the seconds of forward and backward, the latter with twice the work."""
    forward_s = op_seconds(flops, nbytes, dtype, device, op)
    return forward_s + op_seconds(2 * flops, 2 * nbytes, dtype, device, op, "backward")


def _cores() -> int:
    """Return the number of cores available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 0


def _memory_bytes() -> float:
    """Return the machine's memory, or the limit of its container (cgroup 2) if lower."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        limit = ""
    return float(min(physical, int(limit)) if limit.isdecimal() else physical)
