"""The problems of the ASPLOS 2025 contest on intra-operator parallelism, in the contest's seconds.

    python benchmarks/contest.py FOLDER -o benchmarks/contest.json            # every FOLDER/A.json.gz
    python benchmarks/contest.py FOLDER --names B G --seconds 10

The problems are at github.com/google/iopddl, `benchmarks/`.  Each runs as `autopar solve FILE --seconds`
in a process of its own, which is timed and measured from outside: start, imports and reading count.
What numba compiles once per installation is compiled before, on a problem of two variables.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from record import Record
from rich.console import Console
from rich.table import Table

REFERENCE = Path(__file__).parent / "contest_reference.json"
MOST_POINTS = 1.05
"""A problem counts min(best team's cost / ours, this)."""
DEFAULT_SECONDS = 60
COLUMNS = (
    "cost", "bound", "seconds", "MiB", "best team", "first place", "XLA", "best bound", "points",
    "above best", "bound / best",
)  # fmt: skip


def main() -> None:
    """Run the problems, print a row each and the sum of points, and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="with A.json or A.json.gz, and so on")
    parser.add_argument("--names", nargs="+", help="default: all of the folder")
    parser.add_argument("--seconds", type=float, help="default: the contest's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    files = {path.name.split(".")[0]: path for path in sorted(options.folder.glob("*.json*"))}
    files.pop("results", None)
    known = json.loads(REFERENCE.read_text())["instances"]
    warm_up()
    with tempfile.TemporaryDirectory() as folder:
        record = Record(options.output or Path(folder) / "contest.json", sorted(files))
        for name in options.names or sorted(files):
            reference = known.get(name, {})
            seconds = options.seconds or reference.get("seconds_allowed", DEFAULT_SECONDS)
            row = solved(files[name], seconds, options.seed, options.processes)
            record.keep(name, row | {"machine": machine(), "seconds_allowed": seconds})
            print(name, json.dumps(row), flush=True)
        show({name: row for name, row in record.rows.items() if name in files}, known)


def machine() -> str:
    """Where it ran."""
    return f"{os.cpu_count()} cores, {platform.machine()}"


def warm_up() -> None:
    """Compile what is compiled once per installation."""
    nodes = {"costs": [[0, 1]] * 2, "usages": [[1, 0]] * 2, "intervals": [[0, 1]] * 2}
    edges = {"nodes": [[0, 1]], "costs": [[0, 1, 1, 0]]}
    tiny = {"problem": {"nodes": nodes, "edges": edges, "usage_limit": 1}}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tiny.json"
        file.write_text(json.dumps(tiny))
        solved(file, 1, 0, 1)


def solved(file: Path, seconds: float, seed: int, processes: int) -> dict[str, Any]:
    """One problem in a fresh interpreter, timed and measured from outside."""
    words = [sys.executable, "-m", "autopar", "solve", str(file), "--json"]
    words += ["--seconds", str(seconds), "--seed", str(seed), "--processes", str(processes)]
    started = time.perf_counter()
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{file}: exit code {process.returncode}")
    answer = json.loads(printed)
    return {
        "cost": answer["cost"],
        "bound": answer["bound"],
        "seconds": time.perf_counter() - started,
        "MiB": used.ru_maxrss / 2**10,
        "work": answer["work"],
        "seed": seed,
        "processes": processes,
    }


def show(rows: dict[str, dict[str, Any]], known: dict[str, dict[str, Any]]) -> None:
    """Print all rows beside the published figures, and the sum of points."""
    made = Table("", *COLUMNS)
    points = 0.0
    for name, row in rows.items():
        reference = known.get(name)
        cells = [f"{row['cost']:,.0f}", f"{row['bound']:,.0f}"]
        cells += [f"{row['seconds']:.1f}", f"{row['MiB']:.0f}"]
        if reference is not None:
            best, bound = reference["best_of_20_teams"], reference["best_lower_bound"]
            mine = min(best / row["cost"], MOST_POINTS)
            points += mine
            xla = reference["xla"]
            cells += [f"{best:,}", f"{reference['first_place_team']:,}"]
            cells += ["none" if xla is None else f"{xla:,}", f"{bound:,.0f}", f"{mine:.4f}"]
            cells += [f"{row['cost'] / best - 1:+.2%}", f"{row['bound'] / bound:.4f}"]
        made.add_row(name, *cells)
    console = Console(width=200)
    console.print(made)
    console.print(f"sum of points: {points:.4f} of {len(rows)}")


if __name__ == "__main__":
    main()
