"""The straight line t = latency + nbytes / bandwidth through measured times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cost_models.errors import CostModelError

SMALLEST_S = 1e-7


@dataclass(frozen=True)
class Line:
    """`latency_s` and `bytes_per_s`, and the largest relative error at the measured sizes."""

    latency_s: float
    bytes_per_s: float
    error: float

    def seconds(self, nbytes: float) -> float:
        """The fitted time."""
        return self.latency_s + nbytes / self.bytes_per_s


def fit_line(nbytes: Sequence[float], seconds: Sequence[float]) -> Line:
    """Least squares on relative errors, so that small messages count as much as large ones."""
    sizes, times = np.asarray(nbytes, dtype=float), np.asarray(seconds, dtype=float)
    if len(sizes) < 2 or len(sizes) != len(times) or (times <= 0).any():
        raise CostModelError(f"Cannot fit {len(sizes)} sizes to {len(times)} positive times.")
    design = np.stack([1 / times, sizes / times], axis=1)
    (latency, slope), *_ = np.linalg.lstsq(design, np.ones(len(times)), rcond=None)
    if latency < SMALLEST_S:
        # A negative latency is noise: the line goes through the origin instead.
        latency = SMALLEST_S
        slope = float(np.median((times - latency) / sizes))
    slope = max(float(slope), 1e-15)
    fitted = latency + slope * sizes
    return Line(float(latency), 1 / slope, float(np.abs(fitted / times - 1).max()))
