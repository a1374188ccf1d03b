"""Fits of measured times; all minimise relative errors, so that small calls count as much as large.

Times are modelled as sums of non-negative terms.  At two or three terms the non-negative least
squares problem is solved by trying every subset of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from cost_models.errors import CostModelError

SMALLEST_S = 1e-7
"""Latency of a line whose fit has none."""
SMALLEST_S_PER_UNIT = 1e-15
"""Slope of a line whose fit has none."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """``t = latency_s + amount / per_s``, and the largest relative error at the measured amounts."""

    latency_s: float
    per_s: float
    error: float

    def seconds(self, amount: float) -> float:
        """The fitted time."""
        return self.latency_s + amount / self.per_s


def fit_line(amounts: Sequence[float], seconds: Sequence[float]) -> Line:
    """Latency and rate (bytes or operations per second) through measured times."""
    latency_s, per_s = fit_rates([[1.0] * len(amounts), amounts], seconds)
    return _line(max(1 / latency_s, SMALLEST_S), per_s, amounts, seconds)


def _line(
    latency_s: float, per_s: float, amounts: Sequence[float], seconds: Sequence[float]
) -> Line:
    line = Line(latency_s, per_s, 0.0)
    errors = relative_errors([line.seconds(amount) for amount in amounts], seconds)
    return Line(latency_s, per_s, max(errors))


def fit_sustained(amounts: Sequence[float], seconds: Sequence[float]) -> Line:
    """Latency and rate of messages on a link that may let a first burst through at once.

    Small messages do not feel such a limit (a token bucket), so relative errors would follow them: the
    rate is the slope through the larger half, the latency what then fits all.
    """
    points = sorted(zip(amounts, seconds, strict=True))
    large = np.asarray(points[-max(2, len(points) // 2) :], dtype=float)
    terms = np.stack([np.ones(len(large)), large[:, 0]], axis=1) / large[:, 1:]
    slope = float(np.linalg.lstsq(terms, np.ones(len(large)), rcond=None)[0][1])
    if slope <= 0:
        return fit_line(amounts, seconds)
    left = [(1 - slope * n / s, 1 / s) for n, s in points]
    latency_s = sum(of * weight for of, weight in left) / sum(weight**2 for _, weight in left)
    return _line(max(latency_s, SMALLEST_S), 1 / slope, amounts, seconds)


def fit_rates(terms: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Rates r so that ``seconds ~ sum(term / r)``; a term that costs nothing has a huge rate."""
    times = np.asarray(seconds, dtype=float)
    if any(len(term) != len(times) for term in terms) or len(times) < len(terms):
        counts = ", ".join(str(len(term)) for term in terms)
        raise CostModelError(f"Cannot fit terms of {counts} amounts to {len(times)} times.")
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise CostModelError(f"Cannot fit times that are not positive: {list(seconds)}.")
    relative = np.asarray(terms, dtype=float).T / times[:, None]
    slopes = _non_negative(relative)
    return [float(1 / max(slope, SMALLEST_S_PER_UNIT)) for slope in slopes]


def rising(seconds: Sequence[float]) -> list[float]:
    """The nearest series that never falls: neighbours that do are pooled (Ayer et al. 1955), by their
    geometric mean, as noise multiplies."""
    pools: list[tuple[float, int]] = []
    for value in seconds:
        pools.append((math.log(value), 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (one, count), (other, more) = pools.pop(-2), pools.pop()
            pools.append(((one * count + other * more) / (count + more), count + more))
    return [math.exp(mean) for mean, count in pools for _ in range(count)]


def relative_errors(predicted: Iterable[float], measured: Iterable[float]) -> list[float]:
    """The size of each prediction's relative error."""
    return [abs(p / m - 1) for p, m in zip(predicted, measured, strict=True)]


def _non_negative(relative: Floats) -> Floats:
    """The x >= 0 that brings ``relative @ x`` closest to one."""
    count = relative.shape[1]
    found: list[tuple[float, Floats]] = []
    for size in range(1, count + 1):
        for chosen in combinations(range(count), size):
            part, *_ = np.linalg.lstsq(relative[:, chosen], np.ones(len(relative)), rcond=None)
            slopes = np.zeros(count)
            slopes[list(chosen)] = part
            if (part >= 0).all():
                found.append((float(np.square(relative @ slopes - 1).sum()), slopes))
    return min(found, key=lambda pair: pair[0])[1]
