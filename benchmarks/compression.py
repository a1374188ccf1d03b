"""Gradients that travel compressed between two hosts: seconds of a step, and the losses they lead to.

    sudo python benchmarks/compression.py --rate 200mbit -o benchmarks/compression.json

The hosts are network namespaces of this machine (`namespaces.py`), each with one rank.  Every
alternative trains the same GPT-2 on the same batches, in turns.  Beside autopar's own are PyTorch's
DistributedDataParallel alone and with its communication hooks.  On a busy machine its PowerSGD hook,
which starts collectives in callbacks, ended in "Received data size does not match": run it alone.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from namespaces import launch, profile_of, two_hosts
from record import commit

LIMIT_S = 3000.0
WARM_UP = 3
EXACT = 2
"""Exact steps before the first of PowerSGD; the hook of DDP takes no fewer."""
Step = Callable[[dict[str, Any]], float]
OURS: dict[str, Any] = {
    "autopar, exact": None,
    "autopar, fp8": "fp8",
    "autopar, int8": "int8",
    "autopar, PowerSGD of rank 4": {"method": "powersgd", "rank": 4, "after": EXACT},
    "autopar, PowerSGD of rank 16": {"method": "powersgd", "rank": 16, "after": EXACT},
}
THEIRS = ("DDP, exact", "DDP, float16 hook", "DDP, PowerSGD hook of rank 4")


def main() -> None:
    """Make the hosts, run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", default="200mbit", help="of the link, as tc says it")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--hardware", help="a profile, in place of calibrating")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    if asked.worker:
        worker(asked)
        return
    with tempfile.TemporaryDirectory() as folder, two_hosts(asked.rate) as hosts:
        profile, result = profile_of(hosts, 1, asked.hardware, LIMIT_S), f"{folder}/result.json"
        words = [__file__, "--worker", result, "--steps", str(asked.steps), "--hardware", profile]
        launch(hosts, 1, words, LIMIT_S)
        rows = json.loads(Path(result).read_text())
    found = {
        "commit": commit(), "date": datetime.date.today().isoformat(),
        "hosts": f"2 of 1 rank, {asked.rate}", "steps": asked.steps,
        "model": "GPT-2, 4 layers of width 384, batch 16 x 64 tokens, AdamW, float32", "rows": rows,
    }  # fmt: skip
    print_table(found)
    if asked.output:
        asked.output.write_text(json.dumps(found, indent=1) + "\n")


def print_table(found: dict[str, Any]) -> None:
    """In the order in which they were listed."""
    print(f"{found['hosts']}, {found['steps']} steps, commit {found['commit']}")
    print(f"{'':32}{'step':>10}{'predicted':>11}{'last losses':>13}")
    for row in found["rows"]:
        predicted = f"{row['predicted_s'] * 1e3:.0f} ms" if row["predicted_s"] else ""
        print(
            f"{row['name']:32}{row['median_s'] * 1e3:>7.0f} ms{predicted:>11}{row['last_loss']:>13.4f}"
        )


def worker(asked: argparse.Namespace) -> None:
    """All alternatives in turn, on this rank."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    made = {name: autopar_step(given, asked.hardware) for name, given in OURS.items()}
    made |= {name: (ddp_step(name), None) for name in THEIRS}
    seconds: dict[str, list[float]] = {name: [] for name in made}
    losses: dict[str, list[float]] = {name: [] for name in made}
    for number in range(asked.steps):
        for name, (step, _) in made.items():
            dist.barrier()
            started = time.perf_counter()
            losses[name].append(step(batch(number)))
            dist.barrier()
            if number >= WARM_UP:
                seconds[name].append(time.perf_counter() - started)
    if dist.get_rank() == 0:
        rows = [
            {
                "name": name, "median_s": statistics.median(seconds[name]),
                "predicted_s": predicted, "last_loss": statistics.mean(losses[name][-5:]),
                "losses": [round(loss, 4) for loss in losses[name]],
            }
            for name, (_, predicted) in made.items()
        ]  # fmt: skip
        asked.worker.write_text(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


def batch(number: int) -> dict[str, Any]:
    """Sequences of a random walk over the vocabulary, which a model can learn to predict."""
    import torch

    draw = torch.Generator().manual_seed(number)
    steps = torch.randint(0, 4, (16, 64), generator=draw)
    ids = (steps.cumsum(1) * 7) % 512
    return {"input_ids": ids, "labels": ids}


def model() -> Any:
    """The model, with the same weights each time."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=4, n_head=8, n_embd=384, vocab_size=512, n_positions=64, use_cache=False,
        attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def autopar_step(compression: Any, profile: str) -> tuple[Step, float]:
    """A step of autopar, and the seconds that it predicts."""
    import torch

    import autopar

    if isinstance(compression, dict):
        compression = autopar.Compression(**compression)
    parallel = autopar.parallelize(
        model(), (2,), batch(0), preset="ddp", compression=compression, hardware=profile
    )
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-3)

    def step(given: dict[str, Any]) -> float:
        loss = parallel.train_step(**given)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss)

    return step, parallel.plan.estimate.step_s


def ddp_step(name: str) -> Step:
    """A step of PyTorch's own data parallelism; each rank takes its half of the batch."""
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    wrapped = torch.nn.parallel.DistributedDataParallel(model())
    if "float16" in name:
        wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if "PowerSGD" in name:
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=4, start_powerSGD_iter=EXACT
        )
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    rank = dist.get_rank()

    def step(given: dict[str, Any]) -> float:
        loss = wrapped(**{key: value.chunk(2)[rank] for key, value in given.items()}).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        return float(whole) / 2

    return step


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
