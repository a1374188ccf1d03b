"""A witness: PyTorch's own lists, action by action, where it has the same schedules."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed.pipelining import schedules as torchs

from autopar.schedules import Schedule, build


def theirs(kind: type, workers: int, microbatches: int, rank: int) -> list[str]:
    """Of one rank; pairs that run together are one after the other."""
    schedule: Any = object.__new__(kind)
    schedule.pp_group_size, schedule.rank, schedule.n_local_stages = workers, rank, 2
    schedule._num_stages = schedule.num_stages = 2 * workers
    schedule._n_microbatches = microbatches
    schedule.number_of_rounds = max(1, microbatches // workers)
    schedule.microbatches_per_round = microbatches // schedule.number_of_rounds
    found: list[str] = []
    for action in schedule._calculate_single_rank_operations(rank):
        if action is not None:
            found += map(str, action.sub_actions or (action,))
    return found


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("interleaved", torchs.ScheduleInterleaved1F1B),
        ("zb-v", torchs.ScheduleZBVZeroBubble),
        ("dualpipe-v", torchs.ScheduleDualPipeV),
    ],
)
@pytest.mark.parametrize(("workers", "microbatches"), [(2, 4), (3, 6), (4, 8), (4, 10), (4, 12)])
def test_same_lists(name: str, kind: type, workers: int, microbatches: int) -> None:
    ours: Schedule = build(name, workers, microbatches)
    for rank, actions in enumerate(ours.workers):
        assert [str(action) for action in actions] == theirs(kind, workers, microbatches, rank)
