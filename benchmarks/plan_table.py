"""Predicted and measured step times of many plans: the table, and what it comes to."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autopar.plans.plan import Plan


@dataclass(frozen=True)
class Row:
    """One plan: what was predicted and what was measured, in seconds of a training step."""

    plan: str
    digest: str
    predicted_s: float
    objective_s: float
    measured_s: float
    rounds_s: tuple[float, ...]
    is_chosen: bool

    @classmethod
    def of(cls, name: str, plan: Plan, times: tuple[float, ...], *, is_chosen: bool) -> Row:
        """A plan under its name, and its seconds in every round."""
        step_s, median_s = plan.estimate.step_s, statistics.median(times)
        return cls(name, plan.digest, step_s, plan.objective_s, median_s, times, is_chosen)


def table(rows: Sequence[Row]) -> str:
    """From the fastest to the slowest; ``*`` is the plan that the solver takes."""
    order = sorted(rows, key=lambda row: row.predicted_s)
    width = max(len(row.plan) for row in rows)
    lines = [f"rank   {'what up, down split':{width}}{'measured':>12}{'predicted':>12}  rank"]
    for place, row in enumerate(rows, 1):
        mark = "*" if row.is_chosen else " "
        lines.append(
            f"{place:>4} {mark} {row.plan:{width}}{row.measured_s * 1e3:>9.1f} ms"
            f"{row.predicted_s * 1e3:>9.1f} ms  {order.index(row) + 1:>4}"
        )
    return "\n".join(lines)


def summary(rows: Sequence[Row], free_is_chosen: bool) -> dict[str, Any]:
    """What the table comes to; `rows` begin with the fastest."""
    chosen, fastest = next(row for row in rows if row.is_chosen), rows[0]
    paired = (a / b for a, b in zip(chosen.rounds_s, fastest.rounds_s, strict=True))
    errors = [abs(row.predicted_s / row.measured_s - 1) for row in rows]
    pairs = [(row.predicted_s, row.measured_s) for row in rows]
    ratio, spread = chosen.measured_s / fastest.measured_s, noise(rows)
    return {
        "plans": len(rows),
        "chosen plan": chosen.plan,
        "is the best of all plans there are": free_is_chosen,
        "its measured rank": rows.index(chosen) + 1,
        "its step to the fastest's": round(ratio, 4),
        "the same, median within rounds": round(statistics.median(paired), 4),
        "noise of such a ratio": round(spread, 4),
        "within noise of the fastest": ratio <= 1 + spread,
        "slowest to fastest": round(rows[-1].measured_s / fastest.measured_s, 2),
        "Kendall tau, predicted to measured": round(kendall_tau(pairs), 3),
        "error of prediction, median": round(statistics.median(errors), 3),
        "error of prediction, worst": round(max(errors), 3),
    }


def noise(rows: Sequence[Row]) -> float:
    """How far two measurements of the same plan lie apart, as a ratio less one: nine of ten are nearer.

    The two are the medians of the odd and of the even rounds.
    """
    halves = [
        (statistics.median(row.rounds_s[::2]), statistics.median(row.rounds_s[1::2]))
        for row in rows
    ]
    apart = sorted(max(pair) / min(pair) - 1 for pair in halves)
    return apart[math.ceil(0.9 * len(apart)) - 1]


def kendall_tau(pairs: Sequence[tuple[float, float]]) -> float:
    """Agreement of two orders, from -1 to 1; ties count for neither (tau-b; Kendall 1945)."""
    agree = ties_a = ties_b = 0
    for (a, b), (c, d) in itertools.combinations(pairs, 2):
        agree += ((a > c) - (a < c)) * ((b > d) - (b < d))
        ties_a += a == c
        ties_b += b == d
    count = math.comb(len(pairs), 2)
    scale = math.sqrt((count - ties_a) * (count - ties_b))
    return agree / scale if scale else 0.0
