"""Plans under memory limits: from what the fastest plan needs down to the least that was found.

    python benchmarks/limits.py -o benchmarks/limits.json
    python benchmarks/limits.py readme t5 --at benchmarks/limits.json    # at the limits of that file

For each model a column of limits in equal ratios, the least one, and one just below it.  A row has the
seconds of planning without capture, the predicted step, the solver's cost and the gap to its bound.  A
step up is a smaller limit with a lower cost.  No weights, no devices: prices are those of the h100
datasheet profile.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
from record import commit
from solver import MODELS

from autopar.capture import capture
from autopar.capture.saved import saved
from autopar.errors import InfeasibleError, OverLimitError
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.plans.plan import Plan
from autopar.sharding.compile import compile_graph
from autopar.sharding.sharding_problem import Settings
from cost_models.hardware import load
from tests.architectures import ARCHITECTURES

Row = dict[str, Any]
STEPS = 5
"""Limits between the least and what the fastest plan needs, of which both are one."""
BELOW = 0.99
"""Of the least: a limit that cannot be met, as far as was found."""
AIM_GAP, AIM_S = 0.01, 10.0
H100 = load("h100")


def readme() -> Graph:
    """The model of the README."""
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=2, n_head=4, n_embd=64, vocab_size=256)
    ids = torch.randint(0, 256, (8, 32))
    return capture(transformers.GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids})


def llama() -> Graph:
    """Llama-3-8B, one sequence of 4,096 tokens per device."""
    import transformers

    name, settings, sequence = MODELS["llama-3-8b"]
    kind = getattr(transformers, name)
    with torch.device("meta"):
        built = kind(kind.config_class(**settings))
    ids = torch.zeros(8, sequence, dtype=torch.int64, device="meta")
    return capture(built, {"input_ids": ids, "labels": ids})


def tiny(name: str) -> Callable[[], Graph]:
    """An architecture of the tests."""

    def captured() -> Graph:
        model, inputs, loss = ARCHITECTURES[name]()
        return capture(model, inputs, loss=loss)

    return captured


CASES: dict[str, tuple[Callable[[], Graph], tuple[int, ...]]] = {
    "readme": (readme, (2, 2)),
    "llama-3-8b": (llama, (8,)),
    "t5": (tiny("t5"), (2, 2)),
    "vit": (tiny("vit"), (2, 2)),
    "mixtral": (tiny("mixtral"), (2, 2)),
}


def main() -> None:
    """Print a row per limit and what each model's rows show; write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(CASES), help="of " + ", ".join(CASES))
    parser.add_argument("--at", type=Path, help="a file of this benchmark: the same limits")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    given = _limits_of(options.at)
    rows = []
    print(f"{'model':12}{'limit MiB':>12}{'peak MiB':>12}{'plan s':>8}{'step ms':>10}{'gap':>8}")
    for name in options.names:
        for row in rows_of(name, given.get(name)):
            rows.append(row)
            print(_line(row), flush=True)
    for name in options.names:
        print(f"{name:12}{judged([row for row in rows if row['model'] == name])}")
    if options.output:
        content = {
            "commit": commit(),
            "date": datetime.date.today().isoformat(),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}",
            "rows": rows,
        }
        options.output.write_text(json.dumps(content, indent=1) + "\n")


def rows_of(name: str, limits: list[float] | None) -> Iterator[Row]:
    """Plan one model under its limits, the loosest first."""
    captured, shape = CASES[name]
    graph, mesh = captured(), Mesh.of(*shape)
    free = planned(graph, mesh, None)
    yield {"model": name, "mesh": "x".join(map(str, shape)), **free}
    for limit in limits or between(free["peak"], planned(graph, mesh, 1.0)["least"]):
        found = planned(graph, mesh, limit)
        yield {"model": name, "mesh": "x".join(map(str, shape)), **found}


def between(most: float, least: float) -> list[float]:
    """Limits from just below `most` to `least`, and one below it."""
    ratios = (step / STEPS for step in reversed(range(STEPS)))
    return [*(least * (most / least) ** ratio for ratio in ratios), BELOW * least]


def planned(graph: Graph, mesh: Mesh, limit: float | None) -> Row:
    """Plan within a limit; pricing is part of the seconds."""
    kept = saved(graph, H100.device.kind)
    settings = Settings(memory_limit=limit)
    start = time.perf_counter()
    try:
        plan: Plan | None = compile_graph(graph, mesh, H100, settings, kept).plan
        error = None
    except InfeasibleError as refused:
        plan, error = None, refused
    row: Row = {"limit": limit, "seconds": time.perf_counter() - start}
    if plan is None:
        least = error.least_nbytes if isinstance(error, OverLimitError) else None
        return row | {"least": least, "error": str(error)}
    return row | {
        "peak": plan.estimate.memory_nbytes, "step_s": plan.estimate.step_s,
        "objective_s": plan.objective_s, "bound_s": plan.bound_s, "proof": plan.proof,
        "gap": plan.objective_s / plan.bound_s - 1,
    }  # fmt: skip


def judged(rows: list[Row]) -> str:
    """What a model's rows show, in words."""
    made = [row for row in rows if "gap" in row]
    gap, slow = max(row["gap"] for row in made), max(row["seconds"] for row in rows)
    costs = [row["objective_s"] for row in made]
    rises = max(before / after - 1 for before, after in itertools.pairwise(costs))
    aim = f"(aim {AIM_GAP:.0%}, {AIM_S:g} s)"
    return f"largest gap {gap:.2%}, slowest {slow:.1f} s {aim}, largest step up {max(rises, 0):.2%}"


def _limits_of(file: Path | None) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for row in json.loads(file.read_text())["rows"] if file else ():
        if row["limit"] is not None:
            found.setdefault(row["model"], []).append(row["limit"])
    return found


def _line(row: Row) -> str:
    limit = "none" if row["limit"] is None else f"{row['limit'] / 2**20:.4g}"
    head = f"{row['model']:12}{limit:>12}"
    if "error" in row:
        return f"{head}{'':12}{row['seconds']:>8.1f}  {row['error'][:90]}"
    return (
        f"{head}{row['peak'] / 2**20:>12.4g}{row['seconds']:>8.1f}"
        f"{row['step_s'] * 1e3:>10.4g}{row['gap']:>8.2%}"
    )


if __name__ == "__main__":
    main()
