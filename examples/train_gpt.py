"""Train a small GPT-2 on four processes, beside the same training on one.

    torchrun --standalone --nproc-per-node 4 examples/train_gpt.py

The text is the source code of Python's standard library, as bytes.  Every rank trains its shards;
rank 0 also trains the whole model alone, to show that the losses are the same.
"""

from __future__ import annotations

import argparse
import copy
import os
import resource
import statistics
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from rich.console import Console
from rich.progress import Progress, TextColumn
from rich.table import Table

import autopar
from autopar.capture.saved import saved
from autopar.cost.work import step_flops
from autopar.render.text import nbytes, seconds, show_plan
from cost_models.hardware import detect
from cost_models.hardware import load as load_hardware

VOCABULARY = 256  # bytes


def main() -> None:
    """Plan, train, compare."""
    options = arguments()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    console = Console(quiet=os.environ.get("RANK", "0") != "0", width=100, highlight=False)
    model = gpt2(options.layers)
    alone = copy.deepcopy(model)
    text = corpus()
    example = batch(text, options, step=0)

    started = time.perf_counter()
    parallel = autopar.parallelize(model, options.mesh, example, preset=options.preset)
    planned = time.perf_counter() - started
    del model
    console.print(show_plan(parallel.plan))
    console.print(f"\nplanned in {planned:.1f} s; the emitted Python: {parallel.source_path}\n")

    losses, step_s = train(parallel, text, options, console)
    peak = peak_memory()  # before the one process trains here, too
    expected = train_alone(alone, text, options) if dist.get_rank() == 0 else []
    if dist.get_rank() == 0:
        report(console, losses, expected, step_s, peak, parallel.plan)
        console.print(speed(parallel, options, step_s, peak))
    dist.barrier()
    dist.destroy_process_group()


def arguments() -> argparse.Namespace:
    """What can be changed on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--mesh", default="2x2", help="such as 4 or 2x2; its size is --nproc-per-node"
    )
    parser.add_argument("--preset", default=None, help="ddp, fsdp, megatron, ...; none: the solver")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16, help="sequences in the global batch")
    parser.add_argument("--sequence", type=int, default=64)
    return parser.parse_args()


def gpt2(layers: int) -> transformers.GPT2LMHeadModel:
    """A small GPT-2 over bytes; dropout off, so that one and four processes can be compared."""
    config = transformers.GPT2Config(
        n_layer=layers, n_head=4, n_embd=128, n_positions=256, vocab_size=VOCABULARY,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        use_cache=False,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def corpus() -> torch.Tensor:
    """Some two million bytes of the standard library's sources."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    content = b"".join(path.read_bytes() for path in files[:80])
    return torch.frombuffer(bytearray(content[:2_000_000]), dtype=torch.uint8).long()


def batch(text: torch.Tensor, options: argparse.Namespace, step: int) -> dict[str, torch.Tensor]:
    """The global batch of a step, the same on every rank."""
    generator = torch.Generator().manual_seed(step)
    last = len(text) - options.sequence
    starts = torch.randint(0, last, (options.batch,), generator=generator)
    ids = torch.stack([text[start : start + options.sequence] for start in starts.tolist()])
    return {"input_ids": ids, "labels": ids}


def train(
    parallel: autopar.Parallel, text: torch.Tensor, options: argparse.Namespace, console: Console
) -> tuple[list[float], float]:
    """The plain loop; losses, and the median seconds of a step."""
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-3)
    losses, times = [], []
    columns = (*Progress.get_default_columns(), TextColumn("loss {task.fields[loss]:.4f}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("four processes", total=options.steps, loss=float("nan"))
        for step in range(options.steps):
            inputs = batch(text, options, step)
            started = time.perf_counter()
            loss = parallel(**inputs)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            times.append(time.perf_counter() - started)
            losses.append(loss.item())
            progress.update(task, advance=1, loss=losses[-1])
    return losses, statistics.median(times[2:] or times)


def train_alone(
    model: transformers.GPT2LMHeadModel, text: torch.Tensor, options: argparse.Namespace
) -> list[float]:
    """The same steps in one process."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(options.steps):
        loss = model(**batch(text, options, step)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def peak_memory() -> str:
    """The most that was in use until now."""
    if torch.cuda.is_available():
        return f"{nbytes(torch.cuda.max_memory_allocated())} allocated on the first GPU"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return f"{nbytes(peak)} of the whole process, interpreter and libraries included"


def speed(parallel: autopar.Parallel, options: argparse.Namespace, step_s: float, peak: str) -> str:
    """Tokens per second, model FLOPs utilisation and peak memory.

    MFU is what the model's forward and backward need, without recomputation, against what the devices
    could do in that time; on a CPU the peak is the profile's, of one core per rank.
    """
    plan, ranks = parallel.plan, dist.get_world_size()
    done = step_flops(plan, parallel.graph, saved(parallel.graph, "cpu"))
    profile = load_hardware("cpu" if not torch.cuda.is_available() else detect())
    device = profile.device_shared_by(min(ranks, profile.devices_per_host))
    mfu = done.model / (step_s * ranks * device.flops_per_s["float32"])
    tokens_per_s = options.batch * options.sequence / step_s
    return (
        f"{tokens_per_s:,.0f} tokens/s; {done.model / 1e9:.2f} GFLOP a step, MFU {mfu:.1%} of "
        f"{ranks} x {device.flops_per_s['float32'] / 1e9:,.0f} GFLOP/s (float32, profile "
        f"{device.name}); peak memory {peak}"
    )


def report(
    console: Console,
    losses: list[float],
    expected: list[float],
    step_s: float,
    peak: str,
    plan: autopar.Plan,
) -> None:
    """Losses side by side, predictions beside measurements."""
    table = Table(title="loss", title_justify="left", box=None, pad_edge=False)
    for column in ("step", "parallel", "one process", "difference"):
        table.add_column(column, justify="right")
    for step, (ours, theirs) in enumerate(zip(losses, expected, strict=True)):
        table.add_row(str(step), f"{ours:.6f}", f"{theirs:.6f}", f"{abs(ours - theirs):.1e}")
    console.print(table)
    e = plan.estimate
    console.print(
        f"\nstep time: predicted {seconds(e.step_s)}, measured {seconds(step_s)}\n"
        f"memory of the step per rank: predicted {nbytes(e.dropping_nbytes)}; at most "
        f"{peak}"
    )
    worst = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
    verdict = "the same numbers" if worst < 1e-3 else "DIFFERENT NUMBERS"
    console.print(f"largest difference of losses: {worst:.1e} ({verdict})")
    if worst >= 1e-3:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
