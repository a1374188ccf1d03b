"""By how much a process grows while a model on the meta device comes to life under a plan.

    python benchmarks/weights.py --ranks 4 -o benchmarks/weights.json

A Llama of 0.4 GiB in float32 under the preset "fsdp", from its own initialiser and from a safetensors
file; beside it the usual way, a whole model on every rank.  Printed is the largest rank's growth of
resident memory at its peak, as the kernel counts it.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WAYS = ("initialiser", "safetensors", "whole model")
MIB = 2**20


def main() -> None:
    """Launch every way, print the figures and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--worker", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, Path(options.folder))
        return
    with tempfile.TemporaryDirectory() as folder:
        model_of(12).save_pretrained(folder)
        found = {way: launched(way, options.ranks, folder) for way in WAYS}
    print(f"{'MiB':14}{'model':>8}{'shards':>8}{'largest':>9}{'growth':>8}")
    for way, row in found.items():
        model, shards, largest, growth = (
            row[key] / MIB for key in ("model", "shards", "largest", "growth")
        )
        print(f"{way:14}{model:>8.0f}{shards:>8.0f}{largest:>9.0f}{growth:>8.0f}")
    if options.output:
        content = {
            "date": datetime.date.today().isoformat(),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}",
            "ranks": options.ranks,
            "bytes": found,
        }
        options.output.write_text(json.dumps(content, indent=1) + "\n")


def launched(way: str, ranks: int, folder: str) -> dict[str, int]:
    """The figures of the rank that grew most."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", __file__, "--worker", way, "--folder", folder]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    rows = [json.loads(p.read_text()) for p in Path(folder).glob(f"{way}_*.json")]
    return max(rows, key=lambda row: row["growth"])


def model_of(layers: int) -> Any:
    """A Llama of so many layers."""
    import transformers

    config = transformers.LlamaConfig(
        num_hidden_layers=layers, hidden_size=768, intermediate_size=2048, num_attention_heads=12,
        num_key_value_heads=12, vocab_size=8192, max_position_embeddings=256,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def worker(way: str, folder: Path) -> None:
    """One rank: a small model first, so that what torch needs once is not counted."""
    import torch

    import autopar

    ids = torch.zeros(8, 16, dtype=torch.int64)
    batch = {"input_ids": ids, "labels": ids}
    for layers in (1, 12):
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")
        before = resident("VmRSS")
        with torch.device("cpu" if way == "whole model" else "meta"):
            model = model_of(layers)
        weights = folder if way == "safetensors" and layers == 12 else None
        made = autopar.parallelize(model, (int(os.environ["WORLD_SIZE"]),), batch, preset="fsdp",
                                   weights=weights)  # fmt: skip
        growth = resident("VmHWM") - before
    sizes = [p.numel() * p.element_size() for p in model.parameters()]
    shards = sum(p.to_local().numel() * p.element_size() for p in made.parameters())
    row = {"model": sum(sizes), "shards": shards, "largest": max(sizes), "growth": growth}
    (folder / f"{way}_{os.environ['RANK']}.json").write_text(json.dumps(row))


def resident(what: str) -> int:
    """A line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) * 1024


if __name__ == "__main__":
    main()
