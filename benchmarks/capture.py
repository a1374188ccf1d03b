"""Seconds to capture and to plan Llamas of growing depth (weights on the meta device).

python benchmarks/capture.py -o benchmarks/capture.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import transformers

import autopar
from autopar.capture import capture


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 8, 32])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'layers':>6}{'nodes':>7}{'capture':>10}{'plan 2x2':>10}")
    found = []
    for layers in options.layers:
        result = measured(layers, options.repetitions)
        found.append(result)
        print(
            f"{layers:>6}{result['nodes']:>7}{result['capture_s']:>8.2f} s"
            f"{result['plan_s']:>8.2f} s"
        )
    if options.output:
        content = {
            "date": datetime.date.today().isoformat(),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}, one thread",
            "results": found,
        }
        options.output.write_text(json.dumps(content, indent=1) + "\n")


def measured(layers: int, repetitions: int) -> dict[str, Any]:
    """Medians; `plan_s` contains the capture."""
    config = transformers.LlamaConfig(
        num_hidden_layers=layers, hidden_size=4096, intermediate_size=11008, vocab_size=32000
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    ids = torch.zeros(8, 2048, dtype=torch.int64, device="meta")
    batch = {"input_ids": ids, "labels": ids}
    captures, plans = [], []
    for _ in range(repetitions):
        started = time.perf_counter()
        graph = capture(model, batch)
        captures.append(time.perf_counter() - started)
    for _ in range(2):
        started = time.perf_counter()
        autopar.plan(model, (2, 2), batch, hardware="h100")
        plans.append(time.perf_counter() - started)
    return {
        "layers": layers,
        "nodes": len(graph.nodes),
        "capture_s": statistics.median(captures),
        "plan_s": min(plans),
    }


if __name__ == "__main__":
    main()
