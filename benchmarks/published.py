"""Published steps of GPT-like models on clusters, predicted from their configurations alone.

    python benchmarks/published.py [-o benchmarks/published.json] [--source bloom] [--left-out]

All constants are those of the shipped profiles, in the mode of the software (`published_facts.py`).
With `--left-out` each source is predicted again by constants that are fitted on all other sources.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import numpy as np
from clusters import Predicted, Simulator
from published_facts import Row, machine, rows
from published_fit import Constants, fitted, shipped, simulator
from record import commit

from autopar.render.text.table import row as add_row
from autopar.render.text.table import table, to_text

MEMORY_NBYTES = 79.2 * 2**30
"""What PyTorch finds on an A100 of 80 GB."""
GIB = 2**30
RESERVE_NBYTES = 14 * GIB
"""Memory that is not tensors of the step, in the rows of BLOOM, the only ones with memory: context,
communicators, fragmentation.  Fitted on these rows."""
ALIKE = 0.05
"""So much differs what one configuration took on two days (181B, 8 x 8 x 6: 120.2 s, 114.1 s)."""
FEWEST = 5
"""Rows of a model from which a rank correlation is taken."""
SCATTER = (0.02, ALIKE / math.sqrt(2))
"""Standard deviations of a step for which it is asked how well anybody could rank: a low guess, and what
two measurements that differ by `ALIKE` suggest."""
DRAWS = 2000


@dataclass(frozen=True)
class Line:
    """A row with its prediction."""

    row: Row
    predicted: Predicted

    @property
    def error(self) -> float:
        """Relative; of rows that ran."""
        assert self.row.seconds is not None
        return self.predicted.seconds / self.row.seconds - 1.0

    @property
    def nbytes(self) -> float:
        """With the reserve."""
        return self.predicted.nbytes + RESERVE_NBYTES

    @property
    def is_over(self) -> bool:
        """Whether it is predicted to run out of memory."""
        return self.nbytes > MEMORY_NBYTES


def tau(one: Sequence[float], two: Sequence[float], apart: float = 0.0) -> float:
    """Kendall's tau-b, of the pairs whose first figures are so far apart, relatively."""
    every = ((i, j) for i in range(len(one)) for j in range(i))
    pairs = [(i, j) for i, j in every if abs(math.log(one[i] / one[j])) >= apart]
    first = [np.sign(one[i] - one[j]) for i, j in pairs]
    second = [np.sign(two[i] - two[j]) for i, j in pairs]
    both = math.sqrt(sum(map(abs, first)) * sum(map(abs, second)))
    return float(sum(a * b for a, b in zip(first, second, strict=True)) / both) if both else 0.0


def that_ran(lines: Iterable[Line]) -> list[Line]:
    """Without those that ran out of memory."""
    return [line for line in lines if line.row.seconds is not None]


def speeds(ran: Sequence[Line]) -> list[float]:
    """Tokens per second and GPU, as measured."""
    return [_tokens(line) / (line.row.seconds or 1.0) for line in ran]


def ranking(lines: Sequence[Line], apart: float = 0.0) -> float:
    """Of tokens per second and GPU, as measured and as predicted."""
    ran = that_ran(lines)
    return tau(speeds(ran), [_tokens(line) / line.predicted.seconds for line in ran], apart)


def _tokens(line: Line) -> float:
    return line.row.batch * line.row.sequence / line.row.gpus


def reachable(measured: Sequence[float], scatter: float) -> float:
    """Kendall's tau of speeds with themselves measured again: of a perfect prediction, on average."""
    drawn = np.random.default_rng(0).normal(0.0, scatter, (DRAWS, len(measured)))
    return fmean(tau(measured, np.asarray(measured) * np.exp(draw)) for draw in drawn)


def by(lines: Iterable[Line], key: str) -> list[list[Line]]:
    """The lines that ran, grouped by a property of their rows."""
    found: defaultdict[Hashable, list[Line]] = defaultdict(list)
    for line in that_ran(lines):
        found[getattr(line.row, key)].append(line)
    return list(found.values())


def picks(lines: Iterable[Line]) -> list[float]:
    """For every problem of several configurations: the measured step of the predicted best, over the
    measured best."""
    return [
        _seconds(min(group, key=lambda line: line.predicted.seconds)) / min(map(_seconds, group))
        for group in by(lines, "problem")
        if len(group) > 1
    ]


def _seconds(line: Line) -> float:
    assert line.row.seconds is not None
    return line.row.seconds


def summary(lines: Sequence[Line]) -> dict[str, object]:
    """The figures that we are measured by."""
    ran = that_ran(lines)
    worst = max(ran, key=lambda line: abs(line.error))
    taus = [ranking(group) for group in by(lines, "model") if len(group) >= FEWEST]
    picked = picks(lines)
    return {
        "rows": len(lines),
        "mape": fmean(abs(line.error) for line in ran),
        "median": median(abs(line.error) for line in ran),
        "median, signed": median(line.error for line in ran),
        "worst": [worst.row.name, worst.error],
        "tau within a model": fmean(taus) if taus else None,
        "pick": {"problems": len(picked), "mean": fmean(picked), "worst": max(picked)}
        if picked
        else None,
        **_of_memory(lines),
    }


def _of_memory(lines: Sequence[Line]) -> dict[str, object]:
    """Of a source that says what memory its rows took."""
    ran = that_ran(lines)
    known = [line for line in ran if line.row.memory_gb is not None]
    if not known:
        return {}
    without = [line for line in lines if line.row.seconds is None]
    return {
        "out of memory, predicted so": [sum(line.is_over for line in without), len(without)],
        "ran, predicted out of memory": [line.row.name for line in ran if line.is_over],
        "memory mape": fmean(
            abs(line.nbytes / GIB / line.row.memory_gb - 1) for line in known if line.row.memory_gb
        ),
    }


def is_sweep(row: Row) -> bool:
    """BLOOM's topologies: one model, layers divided among tensor, pipeline and data parallelism."""
    return "GBS Variations" in row.source


def report(lines: Sequence[Line]) -> dict[str, object]:
    """A source's figures and lines, for JSON."""
    found: dict[str, object] = {"all": summary(lines)}
    sweep = [line for line in lines if is_sweep(line.row)]
    if sweep:
        measured = speeds(that_ran(sweep))
        found["topology sweep"] = {
            "mape": fmean(abs(line.error) for line in that_ran(sweep)),
            "tau": ranking(sweep),
            "tau of pairs that noise cannot swap": ranking(sweep, ALIKE),
            "tau of a perfect prediction where steps scatter by": {
                f"{scatter:.1%}": reachable(measured, scatter) for scatter in SCATTER
            },
        }
    found["lines"] = [
        [line.row.name, line.row.seconds, float(f"{line.predicted.seconds:.5g}")] for line in lines
    ]
    return found


def predicted(every: Sequence[Row], constants: dict[str, Constants] | None = None) -> list[Line]:
    """The rows' predictions by these constants, by machine; None: by the shipped ones."""
    made: dict[str, Simulator] = {}
    lines = []
    for row in every:
        if row.machine not in made:
            own = constants and constants.get(row.machine)
            hardware = machine(row.machine)
            made[row.machine] = simulator(hardware, own or shipped(hardware))
        lines.append(Line(row, made[row.machine].predict(row)))
    return lines


def sources() -> list[str]:
    """Names of all sources, in the order of the tables."""
    return list(dict.fromkeys(row.table for row in rows()))


def shown(found: dict[str, dict[str, object]], part: str) -> str:
    """The table of all sources."""
    numbers = ("rows", "mean", "median", "worst", "tau", "pick", "worst pick")
    made = table(part, "source", *numbers, right=numbers)
    for name, each in found.items():
        of = each.get(part)
        if not isinstance(of, dict):
            continue
        pick, rank = of["pick"] or {}, of["tau within a model"]
        picked = (f"{pick['mean']:.3f}", f"{pick['worst']:.2f}") if pick else ("", "")
        add_row(made, name, str(of["rows"]), f"{of['mape']:.1%}", f"{of['median']:.1%}",
                f"{of['worst'][1]:+.0%}", "" if rank is None else f"{rank:.2f}", *picked)  # fmt: skip
    return to_text(made)


def main() -> None:
    """Predict, print, write."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("-o", "--output", type=Path, help="Write all figures there, as JSON.")
    asked.add_argument("--source", choices=sources(), help="This source only.")
    asked.add_argument("--left-out", action="store_true", help="Also fit without each source.")
    options = asked.parse_args()
    names = [options.source] if options.source else sources()
    found: dict[str, dict[str, object]] = {}
    if options.output and options.output.is_file():
        found = json.loads(options.output.read_text())
    for name in names:
        of_source = [row for row in rows() if row.table == name]
        stamp = {"commit": commit(), "date": datetime.date.today().isoformat()}
        found[name] = stamp | report(predicted(of_source))
        if options.left_out:
            constants = fitted([row for row in rows() if row.table != name])
            found[name]["left out"] = summary(predicted(of_source, constants)) | {
                "constants": {key: vars(value) for key, value in constants.items()}
            }
        if options.output:
            ordered = {key: found[key] for key in sources() if key in found}
            options.output.write_text(json.dumps(ordered, indent=1) + "\n")
    for part in ("all", "left out"):
        print(shown({name: found[name] for name in names}, part))


if __name__ == "__main__":
    main()
