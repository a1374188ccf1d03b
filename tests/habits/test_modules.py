"""What DDP and FSDP users do with the module: as in one process, or an error where it is done."""

from __future__ import annotations

import pytest

from tests.daily import daily, rotated
from tests.habits import module_jobs
from tests.pool import Pool

HOWS = [
    (how, ranks)
    for ranks in (1, 2, 4)
    for how in ("ddp", "fsdp", "megatron", "solver", "stages")
    if how != "stages" or ranks > 1
]
SOME = [("ddp", 1), ("fsdp", 2), ("megatron", 2), ("stages", 2)]
NOT_IN_STAGES = {"clipped", "initialised", "parts"}
"""Refused there, below."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("habit", "how", "ranks"),
    rotated(module_jobs.WORK, [*SOME, ("fsdp", 4), ("solver", 4), ("stages", 4)], part=2),
)
def test_works(pool: Pool, habit: str, how: str, ranks: int) -> None:
    if how != "stages" or habit not in NOT_IN_STAGES:
        pool.run(ranks, module_jobs.run, habit, how)


@pytest.mark.parametrize(("how", "ranks"), daily(HOWS, SOME))
def test_refused(pool: Pool, how: str, ranks: int) -> None:
    more = module_jobs.IN_STAGES if how == "stages" else ()
    pool.run(ranks, module_jobs.refused, how, [*module_jobs.REFUSED, *more])


@pytest.mark.parametrize(("how", "ranks"), daily(HOWS, SOME))
def test_an_optimizer_of_the_plain_model(pool: Pool, how: str, ranks: int) -> None:
    pool.run(ranks, module_jobs.old_optimizer, how)
