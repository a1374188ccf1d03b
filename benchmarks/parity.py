"""Parallel steps beside one process: random plans of every model and mesh, and every schedule.

python benchmarks/parity.py                   # all of it; what the JSON has is not run again
python benchmarks/parity.py "gpt2 on 2x2"     # these rows, again
python benchmarks/parity.py --no-run          # the table alone

A hundred plans per row are drawn uniformly over types, fifty where blocks run again, 25 where sizes are
padded.  Those of a row convert from and to every type together, but for what the table names.
Losses, gradients, weights and buffers are compared within 1e-9 in float64, and the bytes sent with those
of the plan.
Schedules run on four ranks, as four kinds of stages' meshes.  Random models are those of `tests/fuzz`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from record import Record  # noqa: E402

from autopar.plans.plan import Plan  # noqa: E402
from tests import models, parity  # noqa: E402
from tests.distributed import test_fuzz  # noqa: E402
from tests.distributed.test_parity import MESHES, STEPS, conversions, run  # noqa: E402
from tests.distributed.test_pipelines import (  # noqa: E402
    DEEP,
    NAMES,
    SYNCHRONOUS,
    least_microbatches,
)
from tests.distributed.test_uneven import PADDED  # noqa: E402
from tests.pipelines import Line, check_lines  # noqa: E402
from tests.pool import Pool, WorkerError  # noqa: E402

PLANS, AT_ONCE, FUZZ = 100, 20, 30
Make = Callable[[], parity.Work]
LIMIT_S = 400.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--no-run", action="store_true")
    given = parser.parse_args()
    works = _works()
    schedules = {f"{s} of {n}": (n, s) for n in NAMES for s in SYNCHRONOUS}
    fuzz = {f"random models {seed} to {seed + FUZZ - 1}": seed for seed in range(2, 302, FUZZ)}
    record = Record(HERE / "parity.json", [*works, *schedules, *fuzz])
    pool = Pool()
    for name in [] if given.no_run else given.rows or record.missing:
        began = time.monotonic()
        if name in works:
            row = _plans(pool, *works[name])
        elif name in schedules:
            row = _schedule(pool, *schedules[name])
        else:
            row = _random_models(pool, fuzz[name])
        record.keep(name, row | {"seconds": round(time.monotonic() - began)})
    pool.stop()
    record.show("tried", "failed", "not converted", "seconds")


def _works() -> dict[str, tuple[str, list[Make]]]:
    """Model and plans, by the name of the row."""
    plain = {
        f"{name} on {_by(shape)}": [
            partial(parity.random_work, name, shape, s) for s in range(PLANS)
        ]
        for name in models.CASES
        for shape in MESHES
    }
    again = {
        f"{name} on {_by(shape)}, blocks that run again": [
            partial(parity.random_work, name, shape, 4000 + s, True) for s in range(PLANS // 2)
        ]
        for name in ("gpt2", "llama", "bert")
        for shape in MESHES
    }
    padded = {
        f"{name} on {_by(shape)}, padded": [
            partial(parity.padded_work, name, shape, to, seed=100 + s) for s in range(PLANS // 4)
        ]
        for name, sizes in PADDED.items()
        for shape, to in sizes.items()
    }
    return {row: (row.split()[0], made) for row, made in (plain | again | padded).items()}


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _plans(pool: Pool, name: str, makes: list[Make]) -> dict[str, Any]:
    works, failed = [make() for make in makes], []
    for first in range(0, len(works), AT_ONCE):
        try:
            run(pool, works[first : first + AT_ONCE])
        except WorkerError as error:
            failed.append(str(error)[-1000:])
    found = conversions([Plan.from_json(work.plan) for work in works], name)
    return {
        "tried": len(works), "failed": failed,
        "not converted": sorted(map(" to ".join, STEPS - set(found))),
    }  # fmt: skip


def _schedule(pool: Pool, name: str, schedule: str) -> dict[str, Any]:
    every = [each for each in DEEP if schedule != "chimera" or len(each) % 2 == 0]
    failed = []
    for stages in every:
        line = Line(name, (4,), stages, schedule, least_microbatches(schedule, len(stages)))
        try:
            pool.run(4, check_lines, [line], limit_s=LIMIT_S)
        except WorkerError as error:
            failed.append(f"{stages}: {str(error)[-1000:]}")
    return {"tried": len(every), "failed": failed, "not converted": []}


def _random_models(pool: Pool, first: int) -> dict[str, Any]:
    """Of the grammar of layers in `tests/fuzz`, under the solver's plan, presets' and random ones."""
    failed = []
    for seed in range(first, first + FUZZ):
        try:
            run(pool, test_fuzz.works(seed))
        except WorkerError as error:
            failed.append(f"{seed}: {str(error)[-1000:]}")
        parity.reference.cache_clear()
        pool.run(2, parity.forget)
    return {"tried": FUZZ, "failed": failed, "not converted": []}


if __name__ == "__main__":
    main()
