"""Layer graphs of other planners, and larger ones: `autopar stages FILE` beside the authors' programs.

    python benchmarks/layer_graphs.py                         # all, into benchmarks/layer_graphs.json
    python benchmarks/layer_graphs.py --names gnmt_inference inception_training

Each graph runs in a process of its own, which is timed and measured from outside: start, imports and
reading count.  What numba compiles once per installation is compiled before; the row `first run` has an
empty cache instead.  The authors' values and seconds are in `layer_graphs_reference.json`, the graphs
in `layer_graph_inputs/`.  Graphs called inception, wide or wider are made by `tests/`, with branches as
in Inception v3, or more and longer ones.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from record import Record

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
from tests.pipeline.planner.branching import INCEPTION, WIDE, WIDER, layer_graph  # noqa: E402

INPUTS = Path(__file__).parent / "layer_graph_inputs"
REFERENCE = json.loads((Path(__file__).parent / "layer_graphs_reference.json").read_text())
RESULTS = Path(__file__).parent / "layer_graphs.json"
FIRST_RUN = "first run"
SMALL = "operator_bert_l-3_inference"
TIMES, LEAST_S = 3.0, 10.0
"""A graph may take so many times the authors' seconds, or so many seconds where that is more."""
MOST_MIB = 2048.0
SAME = 1e-5
"""Relative; the authors' programs print six digits."""
Graph = Callable[[], dict[str, Any]]


def _stored(path: str) -> Graph:
    return lambda: json.loads(gzip.decompress((INPUTS / f"{path}.json.gz").read_bytes()))


def _piper(name: str) -> dict[str, Any]:
    """Piper's graph with the memory, devices and bandwidth of a run of its program."""
    run = REFERENCE["piper"][name]
    limits = {"maxDevices": run["devices"], "maxMemoryPerDevice": run["GiB"] * 2.0**30}
    return _stored("piper/bert32a100")() | limits | {"bandwidth": 25 * 2.0**30}


GRAPHS: Mapping[str, Graph] = {
    **{name: _stored(f"dnn_partitioning/{name}") for name in REFERENCE["dnn_partitioning"]},
    FIRST_RUN: _stored(f"dnn_partitioning/{SMALL}"),
    "piper": _stored("piper/bert32a100"),
    **{name: lambda name=name: _piper(name) for name in REFERENCE["piper"]},
    "inception_inference": lambda: layer_graph(INCEPTION, seed=1),
    "inception_training": lambda: layer_graph(INCEPTION, seed=1, training=True),
    "wide_training": lambda: layer_graph(WIDE, seed=3, training=True),
    "wider_inference": lambda: layer_graph(WIDER, seed=3),
}


def main() -> None:
    """Run the graphs, print a row each and what misses its aim, and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names", nargs="+", choices=list(GRAPHS), default=list(GRAPHS))
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    record = Record(asked.output, list(GRAPHS))
    for name, row in measured(asked.names).items():
        record.keep(name, row)
    record.show("load_ms", "authors_ms", "gap", "downsets", "seconds", "allowed_s", "MiB", "missed")


def measured(names: Sequence[str] = tuple(GRAPHS)) -> dict[str, dict[str, Any]]:
    """Return a row for each graph."""
    solved(GRAPHS[SMALL]())
    rows = {}
    for name in names:
        with tempfile.TemporaryDirectory() as cache:
            rows[name] = _row(name, solved(GRAPHS[name](), cache if name == FIRST_RUN else None))
        print(name, json.dumps(rows[name]), flush=True)
    return rows


def _row(name: str, found: dict[str, Any]) -> dict[str, Any]:
    known = {**REFERENCE["dnn_partitioning"], **REFERENCE["piper"]}
    authors = known.get(SMALL if name == FIRST_RUN else name, {})
    allowed_s = max(LEAST_S, TIMES * authors.get("seconds", 0.0))
    missed = [
        *(
            ["value"]
            if found["load_ms"] > authors.get("load_ms", float("inf")) * (1 + SAME)
            else []
        ),
        *(["seconds"] if authors and found["seconds"] > allowed_s else []),
        *(["memory"] if found["MiB"] > MOST_MIB else []),
    ]
    return found | {
        "authors_ms": authors.get("load_ms"),
        "authors_s": authors.get("seconds"),
        "allowed_s": allowed_s if authors else None,
        "missed": ", ".join(missed),
        "machine": f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}",
    }


def solved(graph: dict[str, Any], cache: str | None = None) -> dict[str, Any]:
    """Solve a graph in a fresh interpreter; `cache` is a folder for what numba compiles."""
    environment = os.environ | ({} if cache is None else {"NUMBA_CACHE_DIR": cache})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "layers.json"
        file.write_text(json.dumps(graph))
        words = [sys.executable, "-m", "autopar", "stages", str(file), "--json"]
        started = time.perf_counter()
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
        ) as process:
            assert process.stdout is not None
            printed = process.stdout.read()
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - started
    if process.returncode:
        raise SystemExit(f"exit code {process.returncode}")
    plan = json.loads(printed)
    return {
        "load_ms": float(f"{plan['load_s'] * 1e3:.8g}"),
        "bound_ms": float(f"{plan['bound_s'] * 1e3:.8g}"),
        "gap": round(plan["gap"], 6),
        "stages": len(plan["stages"]),
        "downsets": plan["downsets"],
        "ranges": plan["ranges"],
        "seconds": round(seconds, 2),
        "cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "MiB": round(used.ru_maxrss / 2**10),
    }


if __name__ == "__main__":
    main()
