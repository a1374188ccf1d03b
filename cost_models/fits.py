"""Measured collectives: the alpha-beta line fitted to the times, and the times themselves."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Fit:
    """Latency and bandwidth of one kind of collective among `ranks` ranks, fitted to measurements."""

    collective: str
    ranks: int
    latency_s: float
    bytes_per_s: float
    host_ranks: int = 0
    """Ranks that were busy on the host during the measurement; 0: only the collective's own."""
    error: float = 0.0
    """Largest relative error of the fitted line at the measured sizes."""
    curve: tuple[tuple[float, float], ...] = ()
    """Measured bytes and seconds, both ascending.  They take precedence over the line between measured
    sizes, because libraries change their protocol with the size."""
    at_least: bool = False
    """Measured times did not rise with the bytes, so `bytes_per_s` is only a lower bound, from the
    largest message."""

    def seconds(self, nbytes: float) -> float:
        """Return the seconds for `nbytes`: linear between measured points, `bytes_per_s` beyond them."""
        if not self.curve:
            return self.latency_s + nbytes / self.bytes_per_s
        place = bisect_left(self.curve, (nbytes,))
        if place == 0:
            return self.curve[0][1]
        (size, seconds), *after = self.curve[place - 1 : place + 1]
        if not after:
            return seconds + (nbytes - size) / self.bytes_per_s
        ((next_size, next_s),) = after
        return seconds + (next_s - seconds) * (nbytes - size) / (next_size - size)

    def faster(self, factor: float) -> Fit:
        """Return the fit with `factor` times the bandwidth; the smallest message's time is unchanged."""
        least_s = self.curve[0][1] if self.curve else 0.0
        curve = tuple((n, least_s + (s - least_s) / factor) for n, s in self.curve)
        return replace(self, bytes_per_s=self.bytes_per_s * factor, curve=curve)
