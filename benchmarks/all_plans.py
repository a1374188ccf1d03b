"""Every plan of a small space, run and timed on 2x2 gloo processes: is the chosen one the fastest?

    python benchmarks/all_plans.py -o benchmarks/all_plans.json              # the packaged profile
    python benchmarks/all_plans.py --calibrate -o benchmarks/all_plans.json  # measure the machine first

The space stands in `plan_space.py`.  All plans live in one launch and take turns within every round, so
that a busy moment spoils one round of each, not all of one.  Printed is the median over rounds.  A plan
that fails, or whose loss is not that of the single process, ends the run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from plan_space import MESH, MODEL, captured, case, chosen_of, free_digest, posed_on, say, space
from plan_table import Row, summary, table
from torch import nn

from autopar.sharding.sharding_problem import Compilation
from cost_models.hardware import Hardware, load

WARM = 2
"""Rounds that are not counted."""


def main() -> None:
    """Plan, launch once, print the table, write JSON."""
    options = arguments()
    if options.worker:
        worker(options.worker, options.rounds, options.steps)
        return
    hardware = calibrated() if options.calibrate else load(options.hardware)
    rows, found = ranked(hardware, options.rounds, options.steps)
    print(table(rows), "", *(f"{name:>34}  {value}" for name, value in found.items()), sep="\n")
    if options.output:
        content = {
            "date": datetime.date.today().isoformat(),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}, gloo, one thread a rank",
            "torch": torch.__version__,
            "hardware": f"{hardware.device.name}, {hardware.date}: {hardware.source}",
            "model": f"{MODEL}; AdamW, fused",
            "rounds": options.rounds,
            "steps": options.steps,
            "summary": found,
        }
        options.output.write_text(to_json(content, rows))


def to_json(content: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The content, and the rows as its results: one line each."""
    lines = ",\n".join(f"  {json.dumps(asdict(row))}" for row in rows)
    return (
        json.dumps(content, indent=1).removesuffix("\n}") + f',\n "results": [\n{lines}\n ]\n}}\n'
    )


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--hardware", default="cpu", help="profile name or TOML file")
    source.add_argument("--calibrate", action="store_true", help="measure this machine first")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--steps", type=int, default=3, help="timed steps of a plan in a round")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.rounds < 2 or options.steps < 1:
        parser.error("--rounds must be at least 2 and --steps at least 1")
    return options


def calibrated() -> Hardware:
    """A profile of this machine as it is now."""
    from cost_models.calibrate import calibrate

    return calibrate(progress=lambda text: print(text, file=sys.stderr, flush=True))


def ranked(hardware: Hardware, rounds: int, steps: int) -> tuple[list[Row], dict[str, Any]]:
    """All plans, the fastest first, and what that comes to."""
    posed = posed_on(hardware)
    plans = space(posed)
    chosen = chosen_of(posed, plans)
    print(f"{len(plans)} plans, {rounds} rounds of {steps} steps", flush=True)
    times = measured(plans, rounds, steps)
    rows = [
        Row.of(say(word), made.plan, times[say(word)], is_chosen=word == chosen)
        for word, made in plans.items()
    ]
    rows.sort(key=lambda row: row.measured_s)
    return rows, summary(rows, free_digest(posed) == plans[chosen].plan.digest)


def measured(
    plans: Mapping[Any, Compilation], rounds: int, steps: int
) -> dict[str, tuple[float, ...]]:
    """Seconds of a step by plan and round, from one launch of processes."""
    with tempfile.TemporaryDirectory() as folder:
        texts = {
            say(word): {"plan": made.plan.to_json(), "source": made.source}
            for word, made in plans.items()
        }
        (Path(folder) / "plans.json").write_text(json.dumps(texts))
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
            str(MESH.world_size), __file__, "--worker", folder, "--rounds", str(rounds),
            "--steps", str(steps),
        ]  # fmt: skip
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        times = json.loads((Path(folder) / "times.json").read_text())
    return {name: tuple(values) for name, values in times.items()}


def worker(folder: Path, rounds: int, steps: int) -> None:
    """All plans in turn, on this rank; the first step of each turn is not timed."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    texts = json.loads((folder / "plans.json").read_text())
    contenders = made_of(texts, folder / str(dist.get_rank()))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for round_ in range(rounds + WARM):
        for name, step in contenders.items():
            step()
            dist.barrier()
            started = time.perf_counter()
            for _ in range(steps):
                step()
            dist.barrier()
            if round_ >= WARM:
                times[name].append(round((time.perf_counter() - started) / steps, 7))
    if dist.get_rank() == 0:
        (folder / "times.json").write_text(json.dumps(times))
    dist.barrier()
    dist.destroy_process_group()


def made_of(texts: Mapping[str, Any], folder: Path) -> dict[str, Callable[[], None]]:
    """The training step of every plan; each has given the loss of the single process."""
    from torch.distributed.device_mesh import init_device_mesh

    from autopar.plans.plan import Plan
    from autopar.request.batch import Batch
    from autopar.runtime.parallel import Parallel
    from autopar.runtime.program import load as load_program
    from autopar.utils.cache import write

    (model, inputs), graph = case(), captured()
    device_mesh = init_device_mesh("cpu", MESH.sizes, mesh_dim_names=MESH.names)
    expected = float(model(**inputs).detach())
    found = {}
    for place, (name, text) in enumerate(texts.items()):
        path = write(text["source"], folder / f"plan_{place}.py")
        program = load_program(Plan.from_json(text["plan"]), graph, text["source"], path)
        never: Any = None  # plans other batches: there are none
        parallel = Parallel(model, device_mesh, program, never, example=Batch.of((), inputs))
        loss = float(parallel(**inputs).detach())
        if abs(loss - expected) > 1e-4 * abs(expected):
            raise AssertionError(f"{name}: the loss is {loss}, not {expected}")
        found[name] = stepping(parallel, inputs)
    return found


def stepping(parallel: nn.Module, inputs: Mapping[str, torch.Tensor]) -> Callable[[], None]:
    """Forward, backward and the optimizer."""
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        parallel(**inputs).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    main()
