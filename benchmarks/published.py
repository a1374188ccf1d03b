"""Published steps of GPT-like models on A100 clusters, predicted from their configurations alone.

    python benchmarks/published.py [-o benchmarks/published.json]

For each machine three constants are fitted on one half of its rows and the other half is predicted, both
ways: the efficiency of large products, what an operator costs at least, and what memory holds besides
tensors.  A hash of the row says which half it is in.  All else is the profile `a100` and our pricing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median

import numpy as np
from clusters import Predicted, Row, Simulator, machine, rows

from autopar.render.text.table import row as add_row
from autopar.render.text.table import table, to_text

MEMORY_NBYTES = 79.2 * 2**30
"""What PyTorch finds on an A100 of 80 GB."""
GIB = 2**30
START = (0.6, 20e-6)
ITERATIONS = 6
NOISE = 0.05
"""So much differs what one configuration took on two days (181B, 8 x 8 x 6: 120.2 s, 114.1 s)."""
SCATTER = (0.02, NOISE / math.sqrt(2))
"""Standard deviations of a step for which it is asked how well anybody could rank: a low guess, and what
two measurements that differ by `NOISE` suggest."""
DRAWS = 2000
UNLIKE = 0.08
"""Rows of the sweep that are further off: left out of a figure, which our own errors so choose."""
TOLERATED = 0.03
"""Errors below count by their square, larger ones by their size: some rows were disturbed."""


@dataclass(frozen=True)
class Constants:
    """What is fitted for a machine."""

    matmul_efficiency: float
    launch_s: float
    reserve_nbytes: float = 0.0


@dataclass(frozen=True)
class Line:
    """A row with its prediction, by constants that were fitted on the other half."""

    row: Row
    half: int
    predicted: Predicted
    nbytes: float
    """With the reserve."""

    @property
    def error(self) -> float:
        """Relative; of rows that ran."""
        assert self.row.seconds is not None
        return self.predicted.seconds / self.row.seconds - 1.0

    @property
    def is_over(self) -> bool:
        """Whether it is predicted to run out of memory."""
        return self.nbytes > MEMORY_NBYTES


def half(row: Row) -> int:
    """0 or 1."""
    facts = {k: v for k, v in asdict(row).items() if k not in ("seconds", "memory_gb")}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()[0] % 2


def simulator(name: str, constants: Constants) -> Simulator:
    """The machine with these constants."""
    found = machine(name)
    device = replace(
        found.device,
        matmul_efficiency=constants.matmul_efficiency,
        launch_s=constants.launch_s,
    )
    return Simulator(replace(found, device=device))


def fit(name: str, training: Sequence[Row]) -> Constants:
    """Gauss and Newton on the logarithms of two constants; the third is a median."""
    ran = [row for row in training if row.seconds is not None]

    def errors(theta: np.ndarray) -> np.ndarray:
        found = simulator(name, _constants(theta))
        return np.array([math.log(found.predict(r).seconds / (r.seconds or 1.0)) for r in ran])

    theta = _newton(errors, np.log(np.array(START)))
    constants = _constants(theta)
    found = simulator(name, constants)
    known = [row for row in ran if row.memory_gb is not None]
    reserve = median(
        [row.memory_gb * GIB - found.predict(row).nbytes for row in known if row.memory_gb] or [0.0]
    )
    return replace(constants, reserve_nbytes=reserve)


def _newton(errors: Callable[[np.ndarray], np.ndarray], theta: np.ndarray) -> np.ndarray:
    """Least errors, by reweighted least squares."""
    for _ in range(ITERATIONS):
        here = errors(theta)
        moved = [errors(theta + step) for step in 0.05 * np.eye(len(theta))]
        slopes = (np.stack(moved, axis=1) - here[:, None]) / 0.05
        weights = 1.0 / np.sqrt(np.maximum(np.abs(here), TOLERATED))
        change = np.linalg.lstsq(slopes * weights[:, None], -here * weights, rcond=None)[0]
        theta = theta + np.clip(change, -0.7, 0.7)
        theta[0] = min(theta[0], 0.0)
    return theta


def _constants(theta: np.ndarray) -> Constants:
    efficiency, launch_s = np.exp(theta)
    return Constants(min(1.0, float(efficiency)), float(launch_s))


def tau(one: Sequence[float], two: Sequence[float], apart: float = 0.0) -> float:
    """Kendall's tau-b, of the pairs whose first figures are so far apart, relatively."""
    every = ((i, j) for i in range(len(one)) for j in range(i))
    pairs = [(i, j) for i, j in every if abs(math.log(one[i] / one[j])) >= apart]
    first = [np.sign(one[i] - one[j]) for i, j in pairs]
    second = [np.sign(two[i] - two[j]) for i, j in pairs]
    both = math.sqrt(sum(map(abs, first)) * sum(map(abs, second)))
    return float(sum(a * b for a, b in zip(first, second, strict=True)) / both) if both else 0.0


def ranking(lines: Sequence[Line], apart: float = 0.0) -> float:
    """Of samples per second and GPU, as measured and as predicted."""
    ran = that_ran(lines)
    predicted = [line.row.batch / line.row.gpus / line.predicted.seconds for line in ran]
    return tau(speeds(ran), predicted, apart)


def that_ran(lines: Sequence[Line]) -> list[Line]:
    """Without those that ran out of memory."""
    return [line for line in lines if line.row.seconds is not None]


def speeds(ran: Sequence[Line]) -> list[float]:
    """Samples per second and GPU, as measured."""
    return [line.row.batch / line.row.gpus / (line.row.seconds or 1.0) for line in ran]


def worst_of(ran: Sequence[Line]) -> Line:
    """The one that is furthest off."""
    return max(ran, key=lambda line: abs(line.error))


def reachable(measured: Sequence[float], scatter: float) -> float:
    """Kendall's tau of speeds with themselves measured again: of a perfect prediction, on average."""
    drawn = np.random.default_rng(0).normal(0.0, scatter, (DRAWS, len(measured)))
    return fmean(tau(measured, np.asarray(measured) * np.exp(draw)) for draw in drawn)


def is_sweep(row: Row) -> bool:
    """BLOOM's topologies: one model, layers divided among tensor, pipeline and data parallelism."""
    return "GBS Variations" in row.source


def predicted(name: str, every: Sequence[Row]) -> tuple[list[Line], dict[int, Constants]]:
    """Each half by the constants of the other."""
    lines, fitted = [], {}
    for this in (0, 1):
        fitted[this] = fit(name, [row for row in every if half(row) != this])
        found = simulator(name, fitted[this])
        for row in every:
            if half(row) == this:
                made = found.predict(row)
                lines.append(Line(row, this, made, made.nbytes + fitted[this].reserve_nbytes))
    return lines, fitted


def summary(lines: Sequence[Line]) -> dict[str, object]:
    """The figures that we are measured by."""
    ran = that_ran(lines)
    worst = worst_of(ran)
    known = [line for line in ran if line.row.memory_gb is not None]
    return {
        "rows": len(lines),
        "mape": fmean(abs(line.error) for line in ran),
        "median": median(abs(line.error) for line in ran),
        "worst": [worst.row.name, worst.error],
        "tau": ranking(lines),
        "tau of pairs that noise cannot swap": ranking(lines, NOISE),
        "out of memory, predicted so": [
            sum(line.is_over for line in lines if line.row.seconds is None),
            sum(line.row.seconds is None for line in lines),
        ],
        "ran, predicted out of memory": [line.row.name for line in ran if line.is_over],
        "memory mape": fmean(
            abs(line.nbytes / GIB / line.row.memory_gb - 1) for line in known if line.row.memory_gb
        )
        if known
        else None,
    }


def report(name: str, lines: Sequence[Line], fitted: dict[int, Constants]) -> dict[str, object]:
    """A machine's lines and figures, for JSON."""
    found: dict[str, object] = {
        "constants, fitted on the other half": {k: asdict(v) for k, v in fitted.items()},
        "all": summary(lines),
        **{f"half {k}": summary([line for line in lines if line.half == k]) for k in (0, 1)},
    }
    sweep = [line for line in lines if is_sweep(line.row)]
    if sweep:
        found["topology sweep"] = _of_sweep(sweep)
    found["lines"] = [
        {
            "row": line.row.name,
            "half": line.half,
            "measured_s": line.row.seconds,
            "predicted_s": line.predicted.seconds,
            "measured_gib": line.row.memory_gb,
            "predicted_gib": line.nbytes / GIB,
        }
        for line in lines
    ]
    return found


def _of_sweep(lines: Sequence[Line]) -> dict[str, object]:
    """Its figures, what a few rows unlike the others cost, and what scatter leaves to be ranked."""
    ran = that_ran(lines)
    like = [line for line in ran if abs(line.error) <= UNLIKE]
    others_exact = [
        line.row.batch / line.row.gpus / line.predicted.seconds if line not in like else speed
        for line, speed in zip(ran, speeds(ran), strict=True)
    ]
    return {
        **summary(lines),
        "unlike the others": [line.row.name for line in ran if line not in like],
        "tau without these": ranking(like),
        "tau if all but these were exact": tau(speeds(ran), others_exact),
        "tau of a perfect prediction where steps scatter by": {
            f"{scatter:.1%}": reachable(speeds(ran), scatter) for scatter in SCATTER
        },
    }


def shown(name: str, lines: Sequence[Line]) -> str:
    """The table."""
    numbers = ("tp pp dp", "batch", "measured", "predicted", "error", "GiB", "predicted GiB")
    made = table(name, "row", *numbers, right=numbers)
    for line in sorted(lines, key=lambda line: (line.row.source, line.row.name)):
        row = line.row
        ran = row.seconds is not None
        add_row(made, row.name, f"{row.tp} {row.pp} {row.dp}", f"{row.microbatch}/{row.batch}",
                f"{row.seconds:.1f} s" if ran else "out of memory", f"{line.predicted.seconds:.1f} s",
                f"{line.error:+.1%}" if ran else "", f"{row.memory_gb or 0:.0f}",
                f"{line.nbytes / GIB:.0f}{' over' if line.is_over else ''}")  # fmt: skip
    return to_text(made)


def main() -> None:
    """Fit, predict, print, write."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("-o", "--output", type=Path, help="Write all figures there, as JSON.")
    output = asked.parse_args().output
    found = {}
    for name in ("selene", "jean zay"):
        every = [row for row in rows() if row.machine == name]
        lines, fitted = predicted(name, every)
        found[name] = report(name, lines, fitted)
        print(shown(name, lines))
        print(json.dumps({k: v for k, v in found[name].items() if k != "lines"}, indent=1))
    if output:
        output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
