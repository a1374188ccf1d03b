"""Links between devices: inside a host, between hosts, and between wider groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from cost_models.errors import CostModelError
from cost_models.exchanges import EXCHANGES
from cost_models.fits import Fit
from cost_models.names import meant
from cost_models.ranges import SECONDS, check_count


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


def _busy(fit: Fit) -> int:
    return fit.host_ranks or fit.ranks
