"""Many all-gathers on their way at once."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from autopar.runtime import gathers
from tests.pool import Pool

SIZES = ((3,), (1, 2), (5, 1))
DTYPES = (torch.float64, torch.bfloat16, torch.bool)


def gathered(waits: bool, calls: int) -> None:
    """Gather tensors of several dtypes; three gathers are on their way at any time."""
    rank, size = dist.get_rank(), dist.get_world_size()
    pending = []

    def check() -> None:
        wait, made, call = pending.pop(0)
        wait()
        for whole in made:
            for source in range(size):
                want = torch.full_like(whole[source], (call + source) % 2)
                assert torch.equal(whole[source], want)

    for call in range(calls):
        parts = [torch.full(s, (call + rank) % 2).to(d) for s, d in zip(SIZES, DTYPES, strict=True)]
        made = [part.new_empty((size, *part.shape)) for part in parts]
        pending.append((gathers.all_gather_many(made, parts, dist.group.WORLD, waits), made, call))
        if len(pending) == 3:
            check()
    while pending:
        check()


@pytest.mark.parametrize("waits", [False, True])
def test_gathers_of_many(pool: Pool, waits: bool) -> None:
    pool.run(2, gathered, waits, 50)


def large(waits: bool) -> None:
    """Gather tensors that are too large for one message."""
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [torch.full((3, 1 << 17), 10.0 * rank + place) for place in range(3)]
    made = [part.new_empty((size, *part.shape)) for part in parts]
    assert sum(part.nbytes for part in parts) > gathers.LARGE
    gathers.all_gather_many(made, parts, dist.group.WORLD, waits)()
    for place, whole in enumerate(made):
        for source in range(size):
            assert (whole[source] == 10.0 * source + place).all()


@pytest.mark.parametrize("waits", [False, True])
def test_gathers_of_large_tensors(pool: Pool, waits: bool) -> None:
    pool.run(2, large, waits)


@pytest.mark.slow
def test_many_gathers_on_their_way(pool: Pool) -> None:
    """gloo's coalesced all-gather ends the process within 60,000 of these."""
    pool.run(2, gathered, False, 60_000)
