"""Every habit of `tests/habits/registry`, each way: in DDP, under presets, free, on stages.

python benchmarks/habits.py                  # all of them; ways that the JSON has are not run again
python benchmarks/habits.py fsdp:4 stages:2  # these ways, again
python benchmarks/habits.py --no-run         # the table alone

A verdict is right where it is the record's: equal to the same program in one process within 1e-9, or the
refusal's words.  What is not right is in the JSON with what was found.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from record import Record  # noqa: E402

from tests.habits.registry import HABITS, run  # noqa: E402
from tests.habits.registry.habit import EQUAL, RAISES, Habit  # noqa: E402
from tests.habits.test_registry import LIGHT, wrong  # noqa: E402
from tests.pool import Pool, WorkerError  # noqa: E402

HEAVY = "heavy"
WAYS = [(way, ranks) for way in run.AUTOPAR for ranks in (1, 2, 4) if (way, ranks) != ("stages", 1)]
"""A pipeline of one stage is none."""
LIMIT_S, HEAVY_S = 60.0, 400.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ways", nargs="*", help="such as fsdp:4")
    parser.add_argument("--no-run", action="store_true")
    given = parser.parse_args()
    every = [f"{way}:{ranks}" for way, ranks in ((run.DDP, 2), *WAYS, (HEAVY, 2))]
    record = Record(HERE / "habits.json", every)
    for name in [] if given.no_run else given.ways or record.missing:
        record.keep(name, _tried(*name.split(":")))
    record.show("equal", "refused", "otherwise", "seconds")


def _tried(way: str, ranks: str) -> dict[str, Any]:
    """What became of the habits that are written for a way."""
    pool, began, counts, others = Pool(), time.monotonic(), {"equal": 0, "refused": 0}, {}
    for habit in _habits(way):
        under = "ddp" if way == HEAVY else way
        said = _verdicts(pool, habit, under, int(ranks), HEAVY_S if way == HEAVY else LIMIT_S)
        if any(wrong(habit, under, each, int(ranks)) for each in said):
            others[habit.name] = said
        elif said[0].startswith(RAISES):
            counts["refused"] += 1
        else:
            counts["equal"] += said[0] == EQUAL
    pool.stop()
    return {**counts, "otherwise": others, "seconds": round(time.monotonic() - began)}


def _habits(way: str) -> list[Habit]:
    if way == HEAVY:
        return [habit for habit in HABITS.values() if habit.heavy]
    if way == run.DDP:
        return [habit for habit in LIGHT if habit.ddp]
    return [habit for habit in LIGHT if way not in habit.skip]


def _verdicts(pool: Pool, habit: Habit, way: str, ranks: int, limit_s: float) -> list[str]:
    """Of every rank."""
    try:
        each = pool.run(ranks, run.verdicts, way, [habit.name], limit_s=limit_s)
    except WorkerError as error:
        return [str(error)]
    return [verdict[habit.name] for verdict in each]


if __name__ == "__main__":
    main()
