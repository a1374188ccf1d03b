"""CPU seconds to capture and to plan Llamas of growing depth (weights on the meta device).

python benchmarks/capture.py -o benchmarks/capture.json

One thread does it all, so CPU seconds are the wall clock's on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import torch
import transformers

import autopar
from autopar.capture import capture
from autopar.ir.mesh import Mesh

WITHIN_S = 20.0
"""What 128 layers may take."""


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 8, 32, 128])
    parser.add_argument("--mesh", default="8x8")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    measured(1, options.mesh, 1)  # what is imported and compiled once
    print(f"{'layers':>6}{'nodes':>7}{'capture':>10}{'to plan':>10}{'per layer':>12}")
    found = []
    for layers in options.layers:
        result = measured(layers, options.mesh, options.repetitions)
        found.append(result)
        print(
            f"{layers:>6}{result['nodes']:>7}{result['capture_s']:>8.2f} s{result['plan_s']:>8.2f} s"
            f"{1e3 * result['plan_s'] / layers:>9.0f} ms",
            flush=True,
        )
    if options.output:
        content = {
            "date": datetime.date.today().isoformat(),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}, one thread, CPU seconds",
            "mesh": options.mesh,
            "results": found,
        }
        options.output.write_text(json.dumps(content, indent=1) + "\n")
    worst = max(result["plan_s"] for result in found)
    if worst > WITHIN_S:
        raise SystemExit(f"{worst:.1f} s are more than {WITHIN_S:g} s.")


def measured(layers: int, mesh: str, repetitions: int) -> dict[str, Any]:
    """The fastest of some repetitions; `plan_s` contains the capture."""
    config = transformers.LlamaConfig(
        num_hidden_layers=layers, hidden_size=4096, intermediate_size=11008, vocab_size=32000
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    ids = torch.zeros(64, 2048, dtype=torch.int64, device="meta")
    batch = {"input_ids": ids, "labels": ids}
    captures, plans = [], []
    for _ in range(repetitions):
        started = time.process_time()
        graph = capture(model, batch)
        captures.append(time.process_time() - started)
        started = time.process_time()
        autopar.plan(model, Mesh.parse(mesh), batch, hardware="h100")
        plans.append(time.process_time() - started)
    return {
        "layers": layers,
        "nodes": len(graph.nodes),
        "capture_s": round(min(captures), 3),
        "plan_s": round(min(plans), 3),
    }


if __name__ == "__main__":
    main()
