"""What planning costs: capture, pricing and solving of well-known models on many devices.

    python benchmarks/solver.py -o benchmarks/solver.json              # every model and mesh
    python benchmarks/solver.py --models llama-3-8b --meshes 8x8       # some

Each case runs in a process of its own; `total` is the life of that process: imports, planning, and a
second elimination that only counts states and tables.
No weights, no devices: prices are those of the h100 datasheet profile.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

GPT = {"bos_token_id": 0, "eos_token_id": 0, "vocab_size": 51200, "use_cache": False}
LLAMA = {"vocab_size": 128256, "num_key_value_heads": 8, "use_cache": False}
MODELS: dict[str, tuple[str, dict[str, Any], int]] = {
    "bert-large": ("BertForMaskedLM", {
        "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
        "intermediate_size": 4096, "vocab_size": 30528}, 512),
    "gpt-39b": ("GPT2LMHeadModel", {
        **GPT, "n_embd": 8192, "n_layer": 48, "n_head": 64, "n_positions": 2048}, 2048),
    "gpt-3-175b": ("GPT2LMHeadModel", {
        **GPT, "n_embd": 12288, "n_layer": 96, "n_head": 96, "n_positions": 2048}, 2048),
    "llama-3-8b": ("LlamaForCausalLM", {
        **LLAMA, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "intermediate_size": 14336, "max_position_embeddings": 8192}, 4096),
    "llama-3-70b": ("LlamaForCausalLM", {
        **LLAMA, "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
        "intermediate_size": 28672, "max_position_embeddings": 8192}, 4096),
    "llama-3-405b": ("LlamaForCausalLM", {
        **LLAMA, "hidden_size": 16384, "num_hidden_layers": 126, "num_attention_heads": 128,
        "intermediate_size": 53248, "max_position_embeddings": 8192}, 4096),
}  # fmt: skip
"""By name: class in transformers, its configuration, and the sequence length."""
MESHES = ("8", "8x8", "16x8", "2x8x8")
BATCH = 64
COLUMNS = (
    "model", "mesh", "nodes", "candidates", "states left", "width", "largest table", "capture",
    "pricing", "solve", "total", "peak GiB", "step", "gap",
)  # fmt: skip


def main() -> None:
    """Run every case, print a row each, and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--meshes", nargs="+", default=list(MESHES))
    parser.add_argument("--memory", type=float, help="limit on what the solver counts, in GiB")
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(case(*options.case, options.memory)))
        return
    rows = []
    print("  ".join(f"{column:>12}" for column in COLUMNS))
    for model in options.models:
        for mesh in options.meshes:
            row = in_own_process(model, mesh, options.memory)
            rows.append(row)
            print("  ".join(f"{cell(row[column]):>12}" for column in COLUMNS), flush=True)
    if options.output:
        content = {
            "date": datetime.date.today().isoformat(),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}",
            "batch": BATCH,
            "memory_limit_gib": options.memory,
            "results": rows,
        }
        options.output.write_text(json.dumps(content, indent=1) + "\n")


def cell(value: Any) -> str:
    """Numbers short, the rest as it is."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def in_own_process(model: str, mesh: str, memory: float | None) -> dict[str, Any]:
    """One case in a fresh interpreter, timed from outside."""
    command = [sys.executable, __file__, "--case", model, mesh]
    if memory is not None:
        command += ["--memory", str(memory)]
    started = time.perf_counter()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**row, "total": time.perf_counter() - started}


def case(model: str, mesh_text: str, memory: float | None) -> dict[str, Any]:
    """Plan one model on one mesh, stage by stage."""
    import torch
    import transformers

    from autopar.capture import capture
    from autopar.capture.saved import saved
    from autopar.ir.mesh import Mesh
    from autopar.sharding.sharding_problem import Settings, pose
    from autopar.solver import solve
    from autopar.solver.dominance import reduced
    from autopar.solver.network import Network
    from autopar.solver.order import ordered
    from cost_models.hardware import load

    name, settings, sequence = MODELS[model]
    kind = getattr(transformers, name)
    with torch.device("meta"):
        built = kind(kind.config_class(**settings))
    ids = torch.zeros(BATCH, sequence, dtype=torch.int64, device="meta")
    mesh = Mesh.parse(mesh_text)
    clock = [time.perf_counter()]

    def lap() -> float:
        clock.append(time.perf_counter())
        return clock[-1] - clock[-2]

    graph = capture(built, {"input_ids": ids, "labels": ids})
    kept = saved(graph)
    capture_s = lap()
    posed = pose(graph, mesh, load("h100"), Settings(), kept)
    pricing_s = lap()
    limit = None if memory is None else memory * 2**30
    answer = solve(posed.priced.problem, limit)
    solve_s = lap()
    made = posed.compilation(answer)
    total_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    network = reduced(Network.of(posed.priced.problem)).network
    order = ordered(network)
    candidates = posed.priced.candidates
    return {
        "model": model,
        "mesh": mesh_text,
        "nodes": len(graph.nodes),
        "candidates": sum(
            map(len, (*candidates.operators.values(), *candidates.parameters.values()))
        ),
        "states left": sum(network.sizes),
        "width": order.width,
        "largest table": order.largest_table,
        "capture": capture_s,
        "pricing": pricing_s,
        "solve": solve_s,
        "peak GiB": total_rss,
        "step": made.plan.estimate.step_s,
        "gap": (answer.seconds - answer.bound_s) / answer.seconds,
    }


if __name__ == "__main__":
    main()
