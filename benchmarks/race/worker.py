"""On every rank of a network: try every setting of every family, keep the best, then race.

Started by `__main__.py` through torchrun; rank 0 writes what was found.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from contender import Contender, NotPossible, Place, Setting, groups
from data import settings as data
from equal import TOLERANCE, Reference, error_of
from models import MODELS, TINY, Batch, Model
from ours import settings as ours
from pipeline import settings as pipelines
from tensor import settings as tensors

sys.path.insert(0, str(Path(__file__).parents[1]))

from setting import SETTLING

FAMILIES = (data, tensors, pipelines, ours)
LEARNING_RATE = 1e-4
TRIED, WARM_UP = 3, 1
"""Steps of every setting that are timed, and rounds that are not."""
TURN = SETTLING + 2
"""Steps of a turn."""


@dataclass
class Tried:
    """One setting: how far it is from one process, what a step took; or why it cannot be."""

    family: str
    name: str
    says: str = ""
    error: float | None = None
    predicted_s: float | None = None
    refused: str = ""
    tried_s: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def counts(self) -> bool:
        """Whether it trains the same model."""
        return not self.refused


class Racer:
    """A contender with its optimizer."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.optimizer = torch.optim.AdamW(
            groups(contender.parameters), lr=LEARNING_RATE, fused=True
        )

    def seconds(self, batch: Batch) -> float:
        """One step, from when the first rank starts to when the last has ended."""
        dist.barrier()
        started = time.perf_counter()
        self.contender.step(batch)
        self.optimizer.step()
        self.optimizer.zero_grad()
        dist.barrier()
        return time.perf_counter() - started


def main() -> None:
    """One model on one network."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--sizes", required=True)
    parser.add_argument("--hardware", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--families", required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--output", type=Path, required=True)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    place = Place(tuple(map(int, asked.sizes.split(","))), asked.hardware)
    model = replace(MODELS[asked.model], **({"sizes": TINY} if asked.tiny else {}))
    wanted = asked.families.split(",")
    found = race(model, place, asked.rounds, wanted)
    if dist.get_rank() == 0:
        asked.output.write_text(json.dumps([asdict(each) for each in found]))
    dist.barrier()
    dist.destroy_process_group()


def race(model: Model, place: Place, rounds: int, families: Sequence[str]) -> list[Tried]:
    """All settings, the best of each family timed in turns with the others."""
    batches = model.batches()
    single = Reference.of(model, batches[0]) if dist.get_rank() == 0 else None
    every = [
        (setting, attempt(setting, model, place, batches, single))
        for family in FAMILIES
        for setting in family(place)
        if setting.family in families
    ]
    best: dict[str, tuple[Setting, Tried]] = {}
    for setting, tried in every:
        if tried.counts and (
            setting.family not in best
            or median(tried.tried_s) < median(best[setting.family][1].tried_s)
        ):
            best[setting.family] = setting, tried
    finalists = [(Racer(setting.build(model, place)), tried) for setting, tried in best.values()]
    for number in range(rounds + WARM_UP):
        for racer, tried in turned(finalists, number):
            seconds = [racer.seconds(batches[number % len(batches)]) for _ in range(TURN)]
            if number >= WARM_UP:
                tried.seconds += seconds[SETTLING:]
    return [tried for _, tried in every]


def turned(finalists: Sequence[Any], number: int) -> Sequence[Any]:
    """In another order every round, so that nobody always follows the same one."""
    start = number % len(finalists)
    return [*finalists[start:], *finalists[:start]]


def attempt(
    setting: Setting, model: Model, place: Place, batches: list[Batch], single: Reference | None
) -> Tried:
    """Build it, compare a step with one process, time some steps; rank 0's figures are for all."""
    tried = Tried(setting.family, setting.name)
    with collected():
        try:
            contender = setting.build(model, place)
            tried.says, tried.predicted_s = contender.says, contender.predicted_s
            tried.error = error_of(contender, batches[0], single)
        except NotPossible as reason:
            tried.refused = str(reason)
            return tried
        racer = Racer(contender)
        tried.tried_s = [
            racer.seconds(batches[number % len(batches)]) for number in range(SETTLING + TRIED)
        ][SETTLING:]
    agreed: list[Any] = [tried.error, tried.tried_s]
    dist.broadcast_object_list(agreed)
    tried.error, tried.tried_s = agreed
    if tried.error > TOLERANCE:
        tried.refused = f"not equal to one process: {tried.error:.1e}"
    if dist.get_rank() == 0:
        print(
            f"  {tried.family}, {tried.name}: {tried.refused or f'{median(tried.tried_s):.3f} s'}"
            f" {tried.says}", flush=True,
        )  # fmt: skip
    return tried


@contextmanager
def collected() -> Iterator[None]:
    """What was built inside is gone afterwards."""
    try:
        yield
    finally:
        gc.collect()


if __name__ == "__main__":
    main()
