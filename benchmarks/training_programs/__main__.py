"""Ten thousand random training programs, each on the plain model and on the parallel one.

python benchmarks/training_programs                      # goes on where the JSON ends
python benchmarks/training_programs --first 40 --blocks 10 --minutes 20
python benchmarks/training_programs --shrink 47          # a block, with what fails made short
python benchmarks/training_programs --no-run             # the table alone

A block is a seed of Hypothesis and so many programs (`tests.habits.training_machine`).  One that was cut
off by the time is not counted.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import HealthCheck, Phase, seed, settings  # noqa: E402
from hypothesis.stateful import run_state_machine_as_test  # noqa: E402
from table import table  # noqa: E402

from tests.habits.training_machine import machine  # noqa: E402
from tests.habits.training_model import LAYOUTS  # noqa: E402
from tests.habits.training_run import Program, run  # noqa: E402
from tests.pool import Pool  # noqa: E402

PROGRAMS, ACTIONS = 50, 8
"""Of a block; and actions of a program."""
WANTED = 10_000
RENEWED = 40
"""After so many blocks come new workers: the old ones keep every plan that they have heard of."""


class TimeUpError(BaseException):
    """The block is not finished; Hypothesis lets it through."""


class Block:
    """Counts what its programs were."""

    def __init__(self, pool: Pool, end: float) -> None:
        self._pool, self._end = pool, end
        self.programs: set[str] = set()
        self.actions: Counter[str] = Counter()
        self.segments: Counter[str] = Counter()
        self.settings: Counter[str] = Counter()
        self.failures: list[dict[str, str]] = []

    def run(self, program: Program) -> None:
        """One program; what fails is noted, and the next one comes."""
        if time.monotonic() > self._end:
            raise TimeUpError
        if str(program) in self.programs:
            return
        self.programs.add(str(program))
        self.actions.update(name for name, *_ in program.actions)
        self.segments.update(setting.layout for setting, _ in program.segments)
        setting = program.setting
        self.settings.update((setting.model, setting.optimizer, f"fresh={setting.fresh}"))
        try:
            run(self._pool, program)
        except Exception as error:
            self.failures.append({"program": str(program), "error": str(error)[-3000:]})
            print(f"FAILED\n{program}\n{error}", flush=True)


def drawn(number: int, to: Any, phases: list[Phase]) -> None:
    """The programs of a block, one after the other."""
    run_state_machine_as_test(
        seed(number)(machine(to)),
        settings=settings(
            max_examples=PROGRAMS, stateful_step_count=ACTIONS, phases=phases, database=None,
            deadline=None, print_blob=False, suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip


def run_block(pool: Pool, number: int, end: float) -> dict[str, Any]:
    """A row."""
    began, block = time.monotonic(), Block(pool, end)
    drawn(number, block.run, [Phase.generate])
    ranks: Counter[str] = Counter()
    for layout, count in block.segments.items():
        ranks[str(LAYOUTS[layout].ranks)] += count
    return {
        "seed": number,
        "programs": len(block.programs),
        "seconds": round(time.monotonic() - began, 1),
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
        "actions": dict(block.actions),
        "layouts": dict(block.segments),
        "ranks": dict(ranks),
        "settings": dict(block.settings),
        "failures": block.failures,
    }


def commit() -> str:
    """What a block was measured at."""
    said = subprocess.run(
        ["git", "-C", str(HERE), "describe", "--always", "--dirty"], capture_output=True, text=True
    )
    return said.stdout.strip()


def main() -> None:
    """Run blocks until there are enough, or the time is up; write each when it is done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0, help="seed of the first block")
    parser.add_argument("--blocks", type=int, default=WANTED // PROGRAMS)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--shrink", type=int, metavar="SEED")
    parser.add_argument("--no-run", action="store_true", help="print the table of what there is")
    parser.add_argument("-o", "--output", type=Path, default=HERE.parent / "training_programs.json")
    options = parser.parse_args()
    pool = Pool()
    try:
        if options.shrink is not None:
            drawn(options.shrink, partial(run, pool), [Phase.generate, Phase.shrink])
        elif not options.no_run:
            run_blocks(pool, options)
    finally:
        pool.stop()
    print(table(_rows(options.output)))


def run_blocks(pool: Pool, options: argparse.Namespace) -> None:
    """Those that have no row yet."""
    end = time.monotonic() + 60 * options.minutes
    for number in range(options.first, options.first + options.blocks):
        rows = _rows(options.output)
        if any(row["seed"] == number for row in rows):
            continue
        try:
            rows.append(run_block(pool, number, end))
        except TimeUpError:
            print(f"the time was up in block {number}")
            return
        row = rows[-1]
        print(f"block {number}: {row['programs']} programs, {row['seconds']} s", flush=True)
        text = json.dumps({"blocks": sorted(rows, key=lambda each: each["seed"])}, indent=1)
        options.output.write_text(text + "\n")
        if number % RENEWED == RENEWED - 1:
            pool.stop()


def _rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["blocks"] if path.exists() else []
    return found


if __name__ == "__main__":
    main()
