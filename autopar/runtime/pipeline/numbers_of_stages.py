"""Collects the numbers of all stages' parameters on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from autopar.errors import InputError
from autopar.runtime.parameter_reduction import Number, numbers_of

Told = tuple[list[Number], str]
"""A rank's numbers, and the error of its function."""


def numbers_of_all_stages(
    function: Callable[[torch.Tensor], Any],
    owned: Sequence[tuple[str, torch.Tensor]],
    contributes: bool,
) -> list[Number]:
    """Return the function's numbers of all parameters, in the same order on all ranks.

    `owned`: the parameters that this worker counts.  `contributes`: whether this rank gives its
    worker's numbers.  Raises the function's error where it raised, and `InputError` on other ranks.
    """
    numbers: list[Number] = []
    failed: Exception | None = None
    try:
        numbers = numbers_of(function, owned)
    except Exception as error:
        failed = error
    said = "" if failed is None else f"{type(failed).__name__}: {failed}"
    mine: Told = (numbers if contributes else [], said)
    ranks = [mine] * dist.get_world_size()
    dist.all_gather_object(ranks, mine)
    if failed is not None:
        raise failed
    for rank, (_, error_there) in enumerate(ranks):
        if error_there:
            raise InputError(
                f"The function of reduce_over_parameters failed on rank {rank}: {error_there}"
            )
    return [number for found, _ in ranks for number in found]
