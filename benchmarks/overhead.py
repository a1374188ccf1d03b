"""Step time of autopar's ddp and fsdp presets against PyTorch's own DDP and FSDP2, in the same run.

    python benchmarks/overhead.py --ranks 2 4 -o benchmarks/overhead.json

The same model, batch and fused optimizer; the contenders take turns within every round, so that noise of
the machine falls on all of them alike.  Printed is the median over rounds of the ratio within a round.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAIRS = {"ddp": "DDP", "fsdp": "FSDP2"}


def main() -> None:
    """Start the ranks, gather their figures, print and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return
    found = [measured(ranks, options.rounds) for ranks in options.ranks]
    print(f"{'ranks':>5}  {'preset':8}{'autopar':>10}  {'against':8}{'theirs':>10}{'ratio':>8}")
    for result in found:
        for preset, theirs in PAIRS.items():
            ours_s, theirs_s = result["median_s"][preset], result["median_s"][theirs]
            print(
                f"{result['ranks']:>5}  {preset:8}{ours_s * 1e3:>7.1f} ms  {theirs:8}"
                f"{theirs_s * 1e3:>7.1f} ms{result['ratio'][preset]:>8.3f}"
            )
    if options.output:
        content = {
            "date": datetime.date.today().isoformat(),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}",
            "model": "GPT-2, 4 layers of width 256, batch 16 x 64 tokens, AdamW, float32",
            "results": found,
        }
        options.output.write_text(json.dumps(content, indent=1) + "\n")


def measured(ranks: int, rounds: int) -> dict[str, Any]:
    """One launch of `ranks` processes."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
            str(ranks), __file__, "--worker", str(result), "--rounds", str(rounds),
        ]  # fmt: skip
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        found: dict[str, Any] = json.loads(result.read_text())
    return found


def worker(options: argparse.Namespace) -> None:
    """All contenders in turn, on this rank."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    contenders = {name: make() for name, make in makers().items()}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for round_ in range(options.rounds + 2):
        for name, step in contenders.items():
            dist.barrier()
            started = time.perf_counter()
            step()
            dist.barrier()
            if round_ >= 2:
                times[name].append(time.perf_counter() - started)
    if dist.get_rank() == 0:
        ratio = {
            ours: statistics.median(a / b for a, b in zip(times[ours], times[theirs], strict=True))
            for ours, theirs in PAIRS.items()
        }
        median = {name: statistics.median(values) for name, values in times.items()}
        content = {"ranks": dist.get_world_size(), "median_s": median, "ratio": ratio}
        Path(options.worker).write_text(json.dumps(content))
    dist.barrier()
    dist.destroy_process_group()


def makers() -> dict[str, Callable[[], Callable[[], None]]]:
    """By name: builds a model and gives its training step."""
    import torch
    import torch.distributed as dist
    import transformers
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    import autopar

    ranks = dist.get_world_size()
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 512, (16, 64), generator=generator)
    batch = {"input_ids": ids, "labels": ids}
    part = {k: v.chunk(ranks)[dist.get_rank()] for k, v in batch.items()}

    def model() -> transformers.GPT2LMHeadModel:
        torch.manual_seed(0)
        config = transformers.GPT2Config(
            n_layer=4, n_head=4, n_embd=256, vocab_size=512, n_positions=64, use_cache=False,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config)

    def stepping(module: Any, inputs: dict[str, Any]) -> Callable[[], None]:
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)

        def step() -> None:
            out = module(**inputs)
            (out if torch.is_tensor(out) else out.loss).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    def ours(preset: str) -> Callable[[], None]:
        parallel = autopar.parallelize(
            model(), ranks, batch, preset=preset, batches=autopar.Batches(local=True)
        )
        return stepping(parallel, part)

    def ddp() -> Callable[[], None]:
        return stepping(DistributedDataParallel(model()), part)

    def fsdp2() -> Callable[[], None]:
        mesh = init_device_mesh("cpu", (ranks,))
        whole = model()
        for block in whole.transformer.h:
            fully_shard(block, mesh=mesh)
        fully_shard(whole, mesh=mesh)
        return stepping(whole, part)

    return {
        "ddp": lambda: ours("ddp"),
        "DDP": ddp,
        "fsdp": lambda: ours("fsdp"),
        "FSDP2": fsdp2,
    }


if __name__ == "__main__":
    main()
