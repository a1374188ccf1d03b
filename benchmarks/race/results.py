"""What a race found: the best setting of each family, ours beside them, and the sums over all races."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

OURS, DATA = "autopar", "DDP"
SLOW = ("two", "four")
"""Networks on which links are slow."""

Row = Mapping[str, Any]
Race = Mapping[str, Any]


def raced(race: Race) -> dict[str, Row]:
    """By family, the setting that was timed in turns with the others."""
    return {row["family"]: row for row in race["settings"] if row["seconds"]}


def median_s(row: Row) -> float:
    """Of a step."""
    return float(median(row["seconds"]))


def spread(row: Row) -> float:
    """Half the distance of the quartiles, relative to the median."""
    ordered = sorted(row["seconds"])
    quarter = len(ordered) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / 2 / median_s(row)


def ratios(rows: Mapping[str, Row], others: Iterable[str]) -> dict[str, float]:
    """Our step over each of the others', the median over rounds of the ratio inside a round: what the
    machine did beside falls on both."""
    ours = rows[OURS]["seconds"]
    return {
        name: float(
            median(mine / theirs for mine, theirs in zip(ours, rows[name]["seconds"], strict=True))
        )
        for name in others
        if name in rows
    }


def summary(race: Race) -> dict[str, Any]:
    """Of one model on one network; without us, or without others, there is nothing to compare."""
    rows = raced(race)
    others = [name for name in rows if name != OURS]
    if OURS not in rows or not others:
        return {}
    against = ratios(rows, others)
    best = max(against, key=lambda name: against[name])
    return {
        "ours_s": round(median_s(rows[OURS]), 4),
        "best": best,
        "against_best": round(against[best], 3),
        "against_data": round(against[DATA], 3) if DATA in against else None,
    }


def overall(races: Sequence[Race]) -> dict[str, Any]:
    """How often we are within five per cent of the best, and how much faster than data parallelism."""
    found = [(race, summary(race)) for race in races]
    found = [(race, each) for race, each in found if each]
    slow = [
        1 / each["against_data"]
        for race, each in found
        if race["network"] in SLOW and each["against_data"]
    ]
    return {
        "races": len(found),
        "within 5 % of the best": sum(each["against_best"] <= 1.05 for _, each in found),
        "worst against the best": max((each["against_best"] for _, each in found), default=None),
        "times as fast as DDP on slow networks": round(geometric_mean(slow), 3) if slow else None,
    }


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive ones."""
    return exp(sum(map(log, values)) / len(values))


def table(races: Sequence[Race]) -> str:
    """A line for every race: medians with spread, in milliseconds, and our ratio to the best."""
    families = list(dict.fromkeys(row["family"] for race in races for row in race["settings"]))
    head = ["network", "model", *families, "ours/best", "DDP/ours"]
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    for race in races:
        rows, found = raced(race), summary(race)
        cells = [_cell(rows, name, race) for name in families]
        data = found.get("against_data")
        lines.append(
            " | ".join(
                [
                    race["network"], race["model"], *cells,
                    f"{found['against_best']:.2f} ({found['best']})" if found else "",
                    f"{1 / data:.2f}" if data else "",
                ]
            )
        )  # fmt: skip
    return "\n".join(f"| {line} |" for line in lines)


def _cell(rows: Mapping[str, Row], family: str, race: Race) -> str:
    if family in rows:
        row = rows[family]
        return f"{1e3 * median_s(row):.0f} ±{100 * spread(row):.0f} %"
    reasons = [row["refused"] for row in race["settings"] if row["family"] == family]
    return next((reason for reason in reasons if reason), "")


def settings_of(race: Race) -> str:
    """Which setting of each family was the fastest, and what was refused."""
    lines = [f"{race['network']}, {race['model']}:"]
    for row in raced(race).values():
        predicted = f", predicted {row['predicted_s']:.3f} s" if row["predicted_s"] else ""
        said = f" ({row['says']})" if row["says"] else ""
        lines.append(
            f"  {row['family']:12}{median_s(row):7.3f} s  {row['name']}{said}{predicted},"
            f" off by {row['error']:.0e}"
        )
    lines += [
        f"  {row['family']:12}not counted: {row['name']}: {row['refused']}"
        for row in race["settings"]
        if row["refused"]
    ]
    return "\n".join(lines)


def merged(before: Sequence[Race], new: Sequence[Race], models: Sequence[str]) -> list[Race]:
    """Races of other networks and models stay; those that ran again are replaced."""
    every = {(race["network"], race["model"]): race for race in (*before, *new)}
    networks = list(dict.fromkeys(network for network, _ in every))
    return [
        every[network, model]
        for network in networks
        for model in models
        if (network, model) in every
    ]


def read(path: Path) -> list[Race]:
    """What an earlier run wrote, or nothing."""
    return list(json.loads(path.read_text())["races"]) if path.exists() else []
