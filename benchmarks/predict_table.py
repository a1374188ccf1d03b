"""How far predictions are from what was measured: of steps, operators, collectives, orders of plans."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plan_table import kendall_tau

LEAST_SHARE = 0.02
"""Lines and collectives that took, and were predicted to take, less than this share of the measured step
are too small to be timed by a trace."""


@dataclass(frozen=True)
class Pair:
    """Predicted and measured seconds."""

    what: str
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """The size of the relative error; infinite of what took no time at all."""
        return abs(self.predicted_s / self.measured_s - 1) if self.measured_s else math.inf


@dataclass(frozen=True)
class Row:
    """One model under one plan on one network."""

    network: str
    model: str
    plan: str
    step: Pair
    fastest_s: float
    slowest_s: float
    operators: tuple[Pair, ...]
    collectives: tuple[Pair, ...]
    update: Pair
    slower: float
    """Times as long as while operators were timed a fixed piece of work took in this training."""

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Row:
        """From what the ranks wrote: the median over rounds is the measured step."""
        seconds, beside = found["seconds"], found["beside"]
        step = Pair("step", found["predicted_s"], statistics.median(seconds))
        return cls(
            found["network"], found["model"], found["plan"], step, min(seconds), max(seconds),
            tuple(large(operators(beside), step.measured_s)),
            tuple(large(collectives(beside), step.measured_s)),
            Pair("update", beside["predicted_update_s"], beside["measured_update_s"]),
            found["slower"],
        )  # fmt: skip


def operators(beside: Mapping[str, Any]) -> Iterator[Pair]:
    """The lines of the model's source for which something is predicted, forward and backward apart."""
    for line in beside["lines"]:
        for way in ("forward", "backward"):
            predicted_s = line[f"predicted_{way}_s"]
            if predicted_s:
                where = f"{line['block']} {line['place']} {way}".strip()
                yield Pair(where, predicted_s, line[f"measured_{way}_s"])


def collectives(beside: Mapping[str, Any]) -> Iterator[Pair]:
    """By kind, axis and purpose; without those that ran, and whose seconds the backend did not tell."""
    for flow in beside["flows"]:
        is_known = flow["measured_s"] or not flow["measured_calls"]
        if flow["predicted_calls"] and is_known:
            what = f"{flow['collective']} {flow['axis']} {flow['when']}"
            yield Pair(what, flow["predicted_s"], flow["measured_s"])


def large(pairs: Iterable[Pair], step_s: float) -> Iterator[Pair]:
    """Those that count: they took long, or were predicted to."""
    least_s = LEAST_SHARE * step_s
    return (pair for pair in pairs if max(pair.predicted_s, pair.measured_s) >= least_s)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Errors as medians and worst; orders as Kendall's tau."""
    steps = [row.step.error for row in rows]
    return {
        "combinations": len(rows),
        "error of the step, median": round(statistics.median(steps), 3),
        "error of the step, worst": round(max(steps), 3),
        "error of an operator group, median": middle(p for row in rows for p in row.operators),
        "error of a collective, median": middle(p for row in rows for p in row.collectives),
        "error of the update, median": middle(row.update for row in rows),
        "Kendall tau of plans, mean over model x network": order_of_plans(rows),
        "Kendall tau of all combinations": order(rows),
    }


def middle(pairs: Iterable[Pair]) -> float | None:
    """The median error; None of nothing."""
    errors = [pair.error for pair in pairs]
    return round(statistics.median(errors), 3) if errors else None


def order(rows: Sequence[Row]) -> float:
    """Kendall's tau of predicted and measured steps."""
    return round(kendall_tau([(r.step.predicted_s, r.step.measured_s) for r in rows]), 3)


def order_of_plans(rows: Sequence[Row]) -> float | None:
    """The mean of tau over models and networks, of those with several plans."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.network, row.model), []).append(row)
    found = [order(group) for group in groups.values() if len(group) > 1]
    return round(statistics.fmean(found), 3) if found else None


def table(rows: Sequence[Row]) -> str:
    """A line each."""
    lines = [
        f"{'network':20}{'model':8}{'plan':13}{'measured':>10}{'spread':>15}{'predicted':>11}"
        f"{'error':>8}{'operators':>11}{'collectives':>13}{'machine':>9}"
    ]
    for row in rows:
        spread = f"{row.fastest_s * 1e3:.0f}-{row.slowest_s * 1e3:.0f} ms"
        error = row.step.predicted_s / row.step.measured_s - 1
        lines.append(
            f"{row.network:20}{row.model:8}{row.plan:13}{row.step.measured_s * 1e3:>7.0f} ms"
            f"{spread:>15}{row.step.predicted_s * 1e3:>8.0f} ms{error:>+8.0%}"
            f"{_percent(middle(row.operators)):>11}{_percent(middle(row.collectives)):>13}"
            f"{f'x{row.slower:.2f}':>9}"
        )
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
