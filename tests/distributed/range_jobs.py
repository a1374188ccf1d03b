"""What the pool's workers do with ids and labels that are out of range."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh

import autopar
from autopar.runtime import vocab_parallel_cross_entropy
from autopar.runtime.axes import Axes
from tests import models
from tests.uneven import UNEVEN


def refused(name: str, constraints: dict[str, str], bad: list[tuple[str, int]]) -> tuple[str, Any]:
    """The source, and what each bad entry raises; every sample has it, so every rank meets it."""
    case = UNEVEN[name]() if name in UNEVEN else models.CASES[name]()
    parallel = autopar.parallelize(
        case[0], 2, case[1], loss=case[2], constraints=constraints, hardware="cpu"
    )
    want = float(parallel(**case[1]).detach())
    found = []
    for key, number in bad:
        batch = {k: value.clone() for k, value in case[1].items()}
        batch[key][:, 2] = number
        try:
            found.append(f"loss {float(parallel(**batch))}")
        except IndexError as error:
            found.append(str(error))
    assert float(parallel(**case[1]).detach()) == want, "a refused batch leaves no trace"
    ignored = {k: value.clone() for k, value in case[1].items()}
    ignored["labels"][:, 2] = -100
    assert torch.isfinite(parallel(**ignored))
    return parallel.source, found


def refused_targets(classes: int, bad: tuple[int, ...]) -> dict[int, str]:
    """What each bad target raises where three logits per sample are on each of two ranks."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("x",))
    every = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    mine = every[:, 3 * mesh.get_rank() :][:, :3]
    found = {}
    axis = Axes.of(mesh)["x"]
    for number in (classes - 1, *bad):
        target = torch.tensor([-100, number])
        try:
            got = vocab_parallel_cross_entropy(mine, target, classes=classes, axis=axis)
            want = F.cross_entropy(every[:, :classes], target, reduction="sum")
            assert torch.allclose(got, want)
        except IndexError as error:
            found[number] = str(error)
    assert list(found) == list(bad)
    return found
