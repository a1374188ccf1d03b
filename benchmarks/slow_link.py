"""Two hosts joined by a slow link: what autopar picks, against what a person might set up.

    sudo python benchmarks/slow_link.py -o benchmarks/slow_link.json

The hosts are network namespaces of this machine (`namespaces.py`), with one rank or two each: as many in
all as there are cores, or ranks that wait lend their core to others, which no host does for another one.
The cluster is calibrated first, in the same namespaces.  Then every alternative trains the same model on
the same batches; they take turns within every round, so that noise of the machine falls on all alike.
All losses must agree.
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

from namespaces import launch, profile_of, two_hosts

LIMIT_S = 3000.0
WARM_UP = 2


def stages(schedule: str, microbatches: int, stages: Any = 2, **more: Any) -> dict[str, Any]:
    """A pipeline that a person might set up."""
    return {
        "pipeline": {"stages": stages, "schedule": schedule, "microbatches": microbatches, **more}
    }


ONE: dict[str, dict[str, Any]] = {
    "data": {"preset": "ddp"},
    "fully sharded": {"preset": "fsdp"},
    "tensor": {"preset": "megatron"},
    "solver, no stages": {},
    "2 stages, gpipe, 4": stages("gpipe", 4),
    "2 stages, 1f1b, 4": stages("1f1b", 4),
    "2 stages, 1f1b, 8": stages("1f1b", 8),
    "2 stages, 1f1b, 16": stages("1f1b", 16),
    "2 stages, zb-h1, 8": stages("zb-h1", 8),
    "interleaved, 8": stages("interleaved", 8),
    "2 stages, cut early, 1f1b, 8": stages("1f1b", 8, cuts=("ln_1_3",)),
    "2 stages, cut late, 1f1b, 8": stages("1f1b", 8, cuts=("ln_1_5",)),
    "autopar": {"pipeline": {"stages": "auto"}},
}
"""With one rank per host."""
TWO: dict[str, dict[str, Any]] = {
    "data": {"mesh": (4,), "preset": "ddp"},
    "fully sharded": {"mesh": (4,), "preset": "fsdp"},
    "sharded inside hosts": {"preset": "hsdp"},
    "tensor inside hosts, data across": {"preset": "megatron"},
    "solver, no stages": {},
    "2 stages, gpipe, 4": stages("gpipe", 4),
    "2 stages, 1f1b, 4": stages("1f1b", 4),
    "2 stages, 1f1b, 8": stages("1f1b", 8),
    "2 stages, zb-h1, 8": stages("zb-h1", 8),
    "4 stages, 1f1b, 8": stages("1f1b", 8, 4),
    "4 stages, zb-h1, 16": stages("zb-h1", 16, 4),
    "stages of 1 and 3, 1f1b, 8": stages("1f1b", 8, [1, 3]),
    "autopar": {"pipeline": {"stages": "auto"}},
}
"""With two."""


def main() -> None:
    """Make the hosts, calibrate, run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", default="200mbit", help="of the link, as tc says it")
    parser.add_argument("--per-host", type=int, choices=(1, 2), default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--hardware", help="a profile, in place of calibrating")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    if asked.worker:
        worker(asked)
        return
    found = measured(asked)
    print_table(found)
    if asked.output:
        asked.output.write_text(json.dumps(found, indent=1) + "\n")


def measured(asked: argparse.Namespace) -> dict[str, Any]:
    """Everything, in namespaces that are gone afterwards."""
    with tempfile.TemporaryDirectory() as folder, two_hosts(asked.rate) as hosts:
        profile = profile_of(hosts, asked.per_host, asked.hardware, LIMIT_S)
        result = f"{folder}/result.json"
        script = [
            __file__,
            "--worker",
            result,
            "--rounds",
            str(asked.rounds),
            "--hardware",
            profile,
        ]
        launch(hosts, asked.per_host, script, LIMIT_S)
        rows = json.loads(Path(result).read_text())
    best = min(r["median_s"] for r in rows if r["name"] != "autopar")
    ours = next(r for r in rows if r["name"] == "autopar")
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip(),
        "hosts": f"2 of {asked.per_host} ranks, {asked.rate}",
        "model": "GPT-2, 8 layers of width 384, batch 16 x 128 tokens, AdamW, float32",
        "rounds": asked.rounds,
        "against_best": ours["median_s"] / best,
        "alternatives": rows,
    }


def print_table(found: dict[str, Any]) -> None:
    """Fastest first."""
    print(f"{'':36}{'measured':>10}{'spread':>14}{'predicted':>11}")
    for row in sorted(found["alternatives"], key=lambda r: r["median_s"]):
        low, high = min(row["seconds"]), max(row["seconds"])
        print(
            f"{row['name']:36}{row['median_s']:>8.2f} s{low:>7.2f}-{high:>4.2f} s"
            f"{row['predicted_s']:>9.2f} s  {row['plan']}"
        )
    print(f"autopar's pick against the best of the others: {found['against_best']:.3f}")


def worker(asked: argparse.Namespace) -> None:
    """All alternatives in turn, on this rank."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    mesh = (2,) if asked.per_host == 1 else (2, 2)
    alternatives = ONE if asked.per_host == 1 else TWO
    made = {
        name: contender({"mesh": mesh, **kwargs}, asked.hardware)
        for name, kwargs in alternatives.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in made}
    losses: dict[str, list[float]] = {name: [] for name in made}
    for round_ in range(asked.rounds + WARM_UP):
        for name, (step, _, _) in made.items():
            dist.barrier()
            started = time.perf_counter()
            losses[name].append(float(step(round_)))
            dist.barrier()
            if round_ >= WARM_UP:
                seconds[name].append(time.perf_counter() - started)
    if dist.get_rank() == 0:
        check(losses)
        rows = [
            {
                "name": name, "median_s": statistics.median(seconds[name]),
                "seconds": [round(s, 4) for s in seconds[name]], "predicted_s": predicted,
                "plan": plan,
            }
            for name, (_, predicted, plan) in made.items()
        ]  # fmt: skip
        asked.worker.write_text(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


def check(losses: dict[str, list[float]]) -> None:
    """All alternatives train the same model."""
    first = losses["data"]
    for name, own in losses.items():
        for mine, theirs in zip(own, first, strict=True):
            if abs(mine - theirs) > 1e-4 * abs(theirs):
                raise SystemExit(f"{name!r} has the losses {own}, data parallelism {first}")


def contender(kwargs: dict[str, Any], hardware: str) -> tuple[Callable[[int], float], float, str]:
    """A training step, its predicted seconds, and the plan in a few words."""
    import torch
    import transformers

    import autopar
    from autopar.runtime.pipeline.module import Pipelined

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=8, n_head=8, n_embd=384, vocab_size=2048, n_positions=128, use_cache=False,
        attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 2048, (8, 16, 128), generator=generator)
    model = transformers.GPT2LMHeadModel(config)
    given = dict(kwargs)
    if "pipeline" in given:
        given["pipeline"] = autopar.Pipeline(**given["pipeline"])
    batch = {"input_ids": ids[0], "labels": ids[0]}
    parallel = autopar.parallelize(model, given.pop("mesh"), batch, hardware=hardware, **given)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-4)

    def step(number: int) -> float:
        one = ids[number % len(ids)]
        loss = parallel.train_step(input_ids=one, labels=one)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss)

    plan = parallel.plan
    if isinstance(parallel, Pipelined):
        meshes = "+".join("x".join(map(str, worker.mesh.sizes)) for worker in plan.workers)
        predicted = plan.prediction.step_s if plan.prediction else float("nan")
        return step, predicted, f"{plan.schedule.name} of {plan.microbatches} on {meshes}"
    return step, plan.estimate.step_s, f"no stages, {plan.mesh}"


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
