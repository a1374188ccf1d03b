"""What the ranks of `predict.py` do under torchrun: time operators, or train under every plan.

    torchrun ... predict_ranks.py time FOLDER
    torchrun ... predict_ranks.py train FOLDER

The folder holds what each needs, and takes what rank 0 found.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
import torch.distributed as dist
from setting import SETTLING

WARM = 1
"""Rounds that are not counted."""
PIECES = 25
"""Of work, by which the machine's pace is told."""


def main() -> None:
    """One of the two."""
    what, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    {"time": time_operators, "train": train}[what](folder)
    dist.barrier()
    dist.destroy_process_group()


def time_operators(folder: Path) -> None:
    """On all ranks of all hosts at once, as training has them busy."""
    from autopar.profile.measure import Job
    from cost_models.measured import Database
    from cost_models.measured.timer import Effort

    pairs, setting = pickle.loads((folder / "calls.pickle").read_bytes())
    before_s = pace()
    timed, refused = Job(pairs, "cpu", 1, Effort(rows=7))()
    if refused:
        raise RuntimeError(f"{refused[0].call.text} could not be timed: {refused[0].reason}")
    pace_s = pace()
    if dist.get_rank() == 0:
        Database(folder / "times.sqlite").write(setting, timed)
        (folder / "pace.json").write_text(json.dumps([before_s, pace_s]))


def pace() -> float:
    """Seconds of a fixed piece of work while all ranks do it: the machine's own speed varies."""
    dist.barrier()
    left, right = torch.ones(384, 384), torch.ones(384, 384)
    seconds = []
    for _ in range(PIECES):
        start = time.perf_counter()
        torch.nn.functional.gelu(left @ right)
        seconds.append(time.perf_counter() - start)
    return median(seconds)


@dataclass(frozen=True)
class Contender:
    """A model under a plan."""

    parallel: Any
    batch: dict[str, torch.Tensor]
    optimizer: torch.optim.Optimizer

    def step(self) -> float:
        """Forward, backward and the optimizer; the loss."""
        loss = self.parallel(**self.batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())


def train(folder: Path) -> None:
    """All plans take turns within every round; then each has a step traced."""
    from autopar.profile import run_beside

    asked = json.loads((folder / "asked.json").read_text())
    made = different(
        {
            (model, plan): contender(model, plan, asked, folder)
            for model in asked["models"]
            for plan in asked["plans"]
        }
    )
    check(made)
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in made}
    paces = []
    for round_ in range(asked["rounds"] + WARM):
        paces.append(pace())
        for key, each in made.items():
            for _ in range(SETTLING):
                each.step()
            taken = timed(each.step)
            if round_ >= WARM:
                seconds[key].append(taken)
    rows = []
    for key, each in made.items():
        beside = run_beside(each.parallel, each.batch, each.optimizer, asked["traced"])
        rows.append(row(key, each.parallel.plan, seconds[key], beside))
    if dist.get_rank() == 0:
        slower = median(paces) / fmean(json.loads((folder / "pace.json").read_text()))
        rows = [{**row, "slower": slower} for row in rows]
        (folder / "rows.json").write_text(json.dumps(rows))


def timed(step: Callable[[], Any]) -> float:
    """Seconds of a step, until the last rank has ended it."""
    dist.barrier()
    start = time.perf_counter()
    step()
    dist.barrier()
    return time.perf_counter() - start


def different(made: dict[tuple[str, str], Contender]) -> dict[tuple[str, str], Contender]:
    """Without plans that are another one's again: of one model, the first of equal digests."""
    found: dict[tuple[str, str], tuple[tuple[str, str], Contender]] = {}
    for key, each in made.items():
        found.setdefault((key[0], each.parallel.plan.digest), (key, each))
    return dict(found.values())


def contender(model: str, plan: str, asked: dict[str, Any], folder: Path) -> Contender:
    """A model under a preset's plan, or the solver's, priced by what was measured before."""
    from predict_cases import MODELS

    import autopar

    case = MODELS[model]
    made, batch = case.case(case.measured)
    parallel = autopar.parallelize(
        made, tuple(asked["mesh"]), batch, hardware=asked["hardware"],
        preset=None if plan == "solver" else plan,
        planning=autopar.Planning(database=folder / "times.sqlite"),
    )  # fmt: skip
    return Contender(parallel, batch, torch.optim.AdamW(parallel.parameters(), lr=1e-4))


def check(made: dict[tuple[str, str], Contender]) -> None:
    """All plans of a model train the same model."""
    first: dict[str, float] = {}
    for (model, plan), each in made.items():
        loss = each.step()
        expected = first.setdefault(model, loss)
        if abs(loss - expected) > 1e-4 * abs(expected):
            raise RuntimeError(f"{model} under {plan} has the loss {loss}, not {expected}")


def row(key: tuple[str, str], plan: Any, seconds: list[float], beside: Any) -> dict[str, Any]:
    """What is kept of a contender."""
    found = plan.estimate
    return {
        "model": key[0], "plan": key[1], "digest": plan.digest, "seconds": seconds,
        "predicted_s": found.step_s, "compute_s": found.compute_s, "exposed_s": found.exposed_s,
        "hidden_s": found.hidden_s, "sources": Counter(op.source for op in found.operators),
        "beside": beside.to_dict(),
    }  # fmt: skip


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
