"""The plan's peak against live bytes that a tracker counts, which knows nothing of plans.

    python benchmarks/memory.py -o benchmarks/memory.json

Every architecture of `tests/architectures`, tiny, in float64 (mixtral in float32), on one and two ranks
under the solver's plan; transformers with blocks recomputed as well.  Counted is a whole step: forward,
backward, SGD with momentum; gradients have their place before it, as after a first microbatch.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
from autopar.blocks import Recompute, blocks
from tests import parity, peaks
from tests.architectures import ARCHITECTURES, WORKAROUNDS
from tests.pool import Pool

AIM = 0.02
LIMIT_S = 900.0
"""Of one step, on a machine that has other work."""


@dataclass(frozen=True, slots=True)
class Row:
    """Bytes of one plan on one rank, the first: of the highest point, and what rests in between."""

    model: str
    ranks: int
    recompute: str
    plan: int
    counted: int
    plan_rest: int
    counted_rest: int
    forward: int
    backward: int
    update: int
    allocated: int

    @property
    def error(self) -> float:
        """Of the plan, relative to what was counted."""
        return self.plan / self.counted - 1

    @property
    def short(self) -> float:
        """Of the plan, relative to what the allocator gave."""
        return self.plan / self.allocated - 1


def rows(name: str, pool: Pool) -> Iterator[Row]:
    """All plans of an architecture."""
    key = f"architectures.{name}"
    modes: tuple[Recompute | None, ...] = (None,)
    if blocks(parity.reference(key).graph):
        modes = (None, *(mode for mode in get_args(Recompute) if mode != "none"))
    for ranks in (1, 2):
        for mode in modes:
            plan, work = peaks.planned(key, ranks, mode)
            found = pool.run(ranks, peaks.peaks, work, limit_s=LIMIT_S)[0]
            e = plan.estimate
            rest = e.parameter_nbytes + e.gradient_nbytes + e.optimizer_nbytes
            yield Row(
                name, ranks, mode or "none", e.memory_nbytes, found.most, rest, found.rest,
                found.forward, found.backward, found.update, found.allocated,
            )  # fmt: skip


def main() -> None:
    """Print the rows as they come, then the worst; write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="architectures; none: all")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    pool, found = Pool(), []
    print(f"{'':18}{'ranks':>5}  {'recompute':10}{'plan':>12}{'counted':>12}  {'allocated':>18}")
    for name in options.names or [name for name in ARCHITECTURES if name not in WORKAROUNDS]:
        for row in rows(name, pool):
            found.append(row)
            print(
                f"{row.model:18}{row.ranks:>5}  {row.recompute:10}{row.plan:>12,}{row.counted:>12,}"
                f"{row.error:>8.2%}{row.allocated:>12,}{row.short:>8.1%}",
                flush=True,
            )
        parity.forget()
        if options.output:
            options.output.write_text(to_json(found))
    pool.stop()
    worst = sorted(found, key=lambda row: -abs(row.error))
    named = ", ".join(f"{r.model} on {r.ranks} {r.recompute} {r.error:+.1%}" for r in worst[:8])
    print(f"{within(found)} within {AIM:.0%}; worst: {named}")


def within(found: list[Row]) -> str:
    """How many rows are as close as they should be."""
    return f"{sum(abs(row.error) <= AIM for row in found)} of {len(found)}"


def to_json(found: list[Row]) -> str:
    """The rows so far, with date and machine."""
    content = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}",
        "aim": AIM,
        "within": within(found),
        "results": [
            asdict(row) | {"error": round(row.error, 5), "short": round(row.short, 5)}
            for row in found
        ],
    }
    return json.dumps(content, indent=1) + "\n"


if __name__ == "__main__":
    main()
