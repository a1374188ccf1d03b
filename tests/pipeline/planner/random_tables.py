"""Small random problems, and everything that could be planned for them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from autopar.pipeline.planner.families import Family
from autopar.pipeline.planner.priced import Picked, Priced
from autopar.pipeline.planner.table import StageOption, StageProblem, StageTable


def random_problem(seed: int, families: tuple[Family, ...]) -> StageProblem:
    """Up to 4 layers on up to 4 devices, figures in quarters so that ties happen."""
    random = np.random.default_rng(seed)
    layers, devices = int(random.integers(1, 5)), int(random.choice([2, 3, 4]))
    borders = int(random.integers(1, 3))
    many = sorted({int(m) for m in random.integers(1, 6, size=2)})
    tables = tuple(_table(random, layers, devices, borders, count) for count in many)
    memory = float(random.integers(6, 40))
    return StageProblem(layers + 1, devices, memory, tables, families).check()


def _table(
    random: np.random.Generator, layers: int, devices: int, borders: int, many: int
) -> StageTable:
    ways = []
    for size in (1, 2, 4):
        for index in range(int(random.integers(1, 3))):
            if size <= devices:
                ways.append(_way(random, layers, size, borders, f"way {index}"))
    there, back = random.integers(0, 5, size=(2, layers + 1, borders, borders)) / 4
    return StageTable(many, tuple(ways), there, back, float(random.integers(0, 2)) / 4)


def _way(
    random: np.random.Generator, layers: int, size: int, borders: int, name: str
) -> StageOption:
    shape = (layers + 1, layers + 1)
    rising = np.triu(np.subtract.outer(np.arange(layers + 1), np.arange(layers + 1)).T, 1)

    def figure(most: int, grows: bool = True) -> np.ndarray:
        return random.integers(0, most + 1, size=shape) / 4 * (rising if grows else 1)

    offered = (rising > 0) & (random.random(shape) < 0.9)
    seconds = [np.where(offered, figure(8) + 0.25, np.inf) for _ in range(3)]
    kept = figure(8)
    return StageOption(
        name, 1, size, *seconds, figure(12), kept, figure(4, False), figure(4, False),
        figure(16, False), kept / 2 if random.random() < 0.5 else None,
        int(random.integers(borders)), int(random.integers(borders)),
        np.where(offered, figure(3), np.inf) if random.random() < 0.5 else None,
    )  # fmt: skip


def every_plan(priced: Priced) -> Iterator[tuple[Picked, ...]]:
    """All cuts and all ways whose sizes fill the devices; also ways that others beat."""
    layers = priced.problem.positions - 1
    for stages in range(1, layers + 1):
        for cuts in itertools.combinations(range(1, layers), stages - 1):
            places = list(zip((0, *cuts), (*cuts, layers), strict=True))
            for numbers in itertools.product(range(len(priced.table.ways)), repeat=stages):
                ways = [priced.table.ways[number] for number in numbers]
                offered = all(w.offered[at] for w, at in zip(ways, places, strict=True))
                if offered and sum(w.size for w in ways) == priced.problem.devices:
                    yield tuple((*at, n) for at, n in zip(places, numbers, strict=True))


def least_of(values: Iterator[float]) -> float:
    """Infinite where there is none."""
    return min(values, default=math.inf)
