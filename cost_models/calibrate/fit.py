"""Fits linear models to measured times by relative errors, so that small calls count as much as large.

Times are modelled as sums of non-negative terms.  With two or three terms, the non-negative least
squares problem is solved by trying every subset of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from cost_models.errors import CostModelError

SMALLEST_S = 1e-7
"""Minimum latency of a fitted line."""
SEEN = 0.01
"""Minimum fraction of the largest amount's time that a slope must explain; below the precision of the
times it is not taken for a rate."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """``t = latency_s + amount / per_s``, and the largest relative error at the measured amounts.

    `at_least`: times did not rise with the amounts, so the rate is a lower bound, from the largest one.
    """

    latency_s: float
    per_s: float
    error: float
    at_least: bool = False

    def seconds(self, amount: float) -> float:
        """Return the fitted time."""
        return self.latency_s + amount / self.per_s


def fit_line(amounts: Sequence[float], seconds: Sequence[float]) -> Line:
    """Fit latency and rate (bytes or operations per second) to measured times."""
    _, slope = fit_slopes([[1.0] * len(amounts), amounts], seconds)
    return _line(slope, amounts, seconds)


def fit_sustained(amounts: Sequence[float], seconds: Sequence[float]) -> Line:
    """Fit latency and rate of messages on a link that may let a first burst pass at once.

    A rate limiter (a token bucket) does not affect small messages, and these would dominate a fit by
    relative errors.  So the rate is the slope through the larger half, and the latency is then fitted
    to all messages.
    """
    points = sorted(zip(amounts, seconds, strict=True))
    large = np.asarray(points[-max(2, len(points) // 2) :], dtype=float)
    terms = np.stack([np.ones(len(large)), large[:, 0]], axis=1) / large[:, 1:]
    slope = float(np.linalg.lstsq(terms, np.ones(len(large)), rcond=None)[0][1])
    return _line(slope, amounts, seconds) if slope > 0 else fit_line(amounts, seconds)


def _line(slope: float, amounts: Sequence[float], seconds: Sequence[float]) -> Line:
    """Return the line with this slope and the latency that fits best; a negligible slope counts as 0."""
    per_s, at_least = rate(slope, amounts, seconds)
    slope = 0.0 if at_least else slope
    left = [(1 - slope * n / s, 1 / s) for n, s in zip(amounts, seconds, strict=True)]
    fitted_s = sum(of * weight for of, weight in left) / sum(weight**2 for _, weight in left)
    line = Line(max(fitted_s, SMALLEST_S), per_s, 0.0, at_least)
    return replace(line, error=max(relative_errors(map(line.seconds, amounts), seconds)))


def fit_rates(terms: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Return rates r such that ``seconds ~ sum(term / r)``.

    The rate of a term with negligible cost is a lower bound: its largest amount over the whole time.
    """
    slopes = fit_slopes(terms, seconds)
    return [rate(slope, term, seconds)[0] for slope, term in zip(slopes, terms, strict=True)]


def rate(slope: float, amounts: Sequence[float], seconds: Sequence[float]) -> tuple[float, bool]:
    """Return the rate of a slope, and whether it is only a lower bound, from the largest amount."""
    amount, less_s = max((amount, -took_s) for amount, took_s in zip(amounts, seconds, strict=True))
    if slope * amount < SEEN * -less_s:
        return amount / -less_s, True
    return 1 / slope, False


def fit_slopes(terms: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Return slopes x >= 0 such that ``seconds ~ sum(term * x)``.

    Raises `CostModelError` for too few times, or times that are not positive.
    """
    times = np.asarray(seconds, dtype=float)
    if any(len(term) != len(times) for term in terms) or len(times) < len(terms):
        counts = ", ".join(str(len(term)) for term in terms)
        raise CostModelError(f"Cannot fit terms of {counts} amounts to {len(times)} times.")
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise CostModelError(f"Cannot fit times that are not positive: {list(seconds)}.")
    relative = np.asarray(terms, dtype=float).T / times[:, None]
    return [float(slope) for slope in _non_negative(relative)]


def rising(seconds: Sequence[float]) -> list[float]:
    """Return the nearest non-decreasing series: falling neighbours are pooled (Ayer et al. 1955) by
    their geometric mean, as noise is multiplicative."""
    pools: list[tuple[float, int]] = []
    for value in seconds:
        pools.append((math.log(value), 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (one, count), (other, more) = pools.pop(-2), pools.pop()
            pools.append(((one * count + other * more) / (count + more), count + more))
    return [math.exp(mean) for mean, count in pools for _ in range(count)]


def relative_errors(predicted: Iterable[float], measured: Iterable[float]) -> list[float]:
    """Return the absolute relative error of each prediction."""
    return [abs(p / m - 1) for p, m in zip(predicted, measured, strict=True)]


def _non_negative(relative: Floats) -> Floats:
    """Return the x >= 0 that brings ``relative @ x`` closest to one."""
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
