"""A collective as it was measured: the line through its times, and the times themselves."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Fit:
    """Alpha and beta of one kind of collective among `ranks` ranks, fitted to measurements."""

    collective: str
    ranks: int
    latency_s: float
    bytes_per_s: float
    host_ranks: int = 0
    """How many ranks were busy on the host while it was measured; 0: just these."""
    error: float = 0.0
    """The largest relative error of the fitted line at the measured sizes."""
    curve: tuple[tuple[float, float], ...] = ()
    """Bytes and seconds as measured, both ascending: libraries change their protocol with the size,
    so between measured sizes these count, not the line."""
    at_least: bool = False
    """Times did not rise with the bytes: `bytes_per_s` is what the largest message proves."""

    def seconds(self, nbytes: float) -> float:
        """Of so many bytes: between measured points on a line, beyond the last at `bytes_per_s`."""
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
        """The same where bytes take so many times less; what small messages take stays."""
        least_s = self.curve[0][1] if self.curve else 0.0
        curve = tuple((n, least_s + (s - least_s) / factor) for n, s in self.curve)
        return replace(self, bytes_per_s=self.bytes_per_s * factor, curve=curve)
