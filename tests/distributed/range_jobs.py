"""What the pool's workers do with ids and labels that are out of range."""

from __future__ import annotations

from typing import Any

import torch

import autopar
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
