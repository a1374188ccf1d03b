"""The plan's peak against live bytes that a tracker counts, which knows nothing of plans.

    python benchmarks/memory.py -o benchmarks/memory.json

Every architecture of `tests/architectures`, tiny, in float64 (mixtral in float32), on one and two ranks
under the solver's plan, transformers with blocks recomputed as well, and on two under presets that split
more.  Some models, and those of `tests/heavy` and `tests/composite`, which need most for weights or
inside of operators, also under the other presets and with blocks recomputed there, a few on four ranks.
Counted is a whole step: forward, backward, SGD with momentum; between steps gradients stay and are set
to zero, and are dropped, as `zero_grad()` does.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import math
import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
from autopar.ir.blocks import Recompute, blocks
from tests import composite, heavy, parity, peaks
from tests.architectures import ARCHITECTURES, WORKAROUNDS
from tests.pool import Pool

PRESETS = ("ddp", "zero2", "fsdp", "megatron", "megatron_sp")
SPLITTING = ("fsdp", "megatron", "megatron_sp")
"""Under which every architecture is run."""
ON_FOUR = (("fsdp", (4,)), ("fsdp", (2, 2)), ("hsdp", (2, 2)), ("fsdp_megatron", (2, 2)))
FEW = ("heavy.pairs", "heavy.encoder", "mlp", "llama")
"""Those that are run on four ranks too."""
PRESET_CASES = (
    *heavy.ALL, *composite.ALL, "mlp", "gpt2", "llama", "bert", "cnn",
    "architectures.gpt2", "architectures.t5", "architectures.vit", "architectures.dlrm",
)  # fmt: skip
AIM = 0.02
LIMIT_S = 900.0
"""Of one step, on a machine that has other work."""


@dataclass(frozen=True, slots=True)
class Row:
    """Bytes of one plan on one rank, the first: of the highest point, and what rests in between
    (`plan_rest` with gradients that stay)."""

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
    preset: str = ""
    gradients: str = "kept"
    """Between steps: kept, or dropped."""
    mesh: str = ""
    """Of a preset."""

    @property
    def error(self) -> float:
        """Of the plan, relative to what was counted."""
        return self.plan / self.counted - 1

    @property
    def short(self) -> float:
        """Of the plan, relative to what the allocator gave."""
        return self.plan / self.allocated - 1


Rows = Callable[[str, Pool], Iterator[Row]]


def rows(name: str, pool: Pool) -> Iterator[Row]:
    """All plans of an architecture."""
    key = f"architectures.{name}"
    for ranks, mode, keeps in itertools.product((1, 2), _modes(key), (True, False)):
        yield _row(name, key, (ranks,), mode, pool, keeps=keeps)
    for preset in SPLITTING if key not in PRESET_CASES else ():
        yield _row(name, key, (2,), None, pool, preset)


def rows_of_presets(key: str, pool: Pool) -> Iterator[Row]:
    """Plans of presets, with gradients that stay and that are dropped."""
    places = [(preset, (2,)) for preset in PRESETS] + [*(ON_FOUR if key in FEW else ())]
    for (preset, shape), mode, keeps in itertools.product(places, _modes(key), (True, False)):
        yield _row(key, key, shape, mode, pool, preset, keeps)


def _modes(key: str) -> tuple[Recompute | None, ...]:
    """What blocks may do in the backward, where there are any."""
    if not blocks(parity.reference(key).graph):
        return (None,)
    return None, *(mode for mode in get_args(Recompute) if mode != "none")


def _row(
    name: str,
    key: str,
    shape: tuple[int, ...],
    mode: Recompute | None,
    pool: Pool,
    preset: str = "",
    keeps: bool = True,
) -> Row:
    ranks = math.prod(shape)
    plan, work = peaks.planned(key, shape, mode, preset)
    found = pool.run(ranks, peaks.peaks, work, keeps, limit_s=LIMIT_S)[0]
    e = plan.estimate
    rest = e.parameter_nbytes + e.gradient_nbytes + e.optimizer_nbytes
    return Row(
        name, ranks, mode or "none", e.memory_nbytes if keeps else e.dropping_nbytes, found.most,
        rest, found.rest,
        found.forward, found.backward, found.update, found.allocated,
        preset, "kept" if keeps else "dropped", "x".join(map(str, shape)) if preset else "",
    )  # fmt: skip


def main() -> None:
    """Print the rows as they come, then the worst; write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="architectures; none: all")
    parser.add_argument("--presets", action="store_true", help="of the names, plans of presets")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    pool, found = Pool(), []
    print(f"{'':32}{'ranks':>5}  {'recompute':10}{'plan':>12}{'counted':>12}  {'allocated':>18}")
    for name, every in _asked(options.names, options.presets):
        for row in every(name, pool):
            found.append(row)
            print(
                f"{row.model:18}{row.preset:14}{row.mesh or row.ranks:>5}  {row.recompute:10}"
                f"{row.gradients:8}{row.plan:>12,}{row.counted:>12,}"
                f"{row.error:>8.2%}{row.allocated:>12,}{row.short:>8.1%}",
                flush=True,
            )
        parity.forget()
        if options.output:
            options.output.write_text(to_json(found))
    pool.stop()
    worst = sorted(found, key=lambda row: -abs(row.error))
    named = ", ".join(
        f"{r.model} {r.preset} on {r.mesh or r.ranks} {r.recompute} {r.gradients} {r.error:+.1%}"
        for r in worst[:8]
    )
    print(f"{within(found)} within {AIM:.0%}; worst: {named}")


def _asked(names: list[str], presets: bool) -> list[tuple[str, Rows]]:
    """The models that are asked for, each with what is to be counted."""
    if names:
        return [(name, rows_of_presets if presets else rows) for name in names]
    own = [(name, rows) for name in ARCHITECTURES if name not in WORKAROUNDS and not presets]
    return [*own, *((name, rows_of_presets) for name in PRESET_CASES)]


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
