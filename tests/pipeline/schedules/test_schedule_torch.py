"""A witness: PyTorch's own lists, where it has the same schedules; and ours, loaded by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.distributed.pipelining import schedules as torchs

from autopar.errors import ScheduleError
from autopar.pipeline.schedules import SCHEDULES, Schedule, build
from autopar.pipeline.schedules.torch_csv import torch_csv


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


def loaded(schedule: Schedule, text: str, form: str, folder: Path) -> Any:
    """Torch's engine with our list."""
    engine: Any = object.__new__(torchs._PipelineScheduleRuntime)
    engine._stages, engine.pipeline_order, engine._defer_pp_recv = [], {}, False
    engine.pp_group_size, engine._num_stages = len(schedule.workers), schedule.stages
    engine._n_microbatches = schedule.microbatches
    (folder / "schedule.csv").write_text(text)
    engine._load_csv(str(folder / "schedule.csv"), format=form)
    return engine


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize(
    "name", [n for n, known in SCHEDULES.items() if n != "chimera" and not known.asynchronous]
)
def test_torch_loads_and_simulates_our_lists(name: str, workers: int, tmp_path: Path) -> None:
    schedule = build(name, workers, 8)
    homes = [holders[0] for holders in schedule.holders]
    for text, form in (
        (torch_csv(schedule), "compute_comms"),
        (torch_csv(schedule, transfers=False), "compute_only"),
    ):
        engine = loaded(schedule, text, form, tmp_path)
        assert [engine.stage_index_to_group_rank[stage] for stage in range(len(homes))] == homes
        for worker, actions in enumerate(schedule.workers):
            read = [str(a) for a in engine.pipeline_order_with_comms[worker] if a.is_compute_op]
            assert read == [str(action) for action in actions]
        # Its simulator knows no sums of gradients, and nothing of FSDP, which its own lists speak of.
        unknown = (torchs.REDUCE_GRAD, torchs.UNSHARD, torchs.RESHARD)
        engine.pipeline_order_with_comms = {
            worker: [action for action in row if action.computation_type not in unknown]
            for worker, row in engine.pipeline_order_with_comms.items()
        }
        engine._simulate()


def test_the_text() -> None:
    schedule = build("1f1b", 2, 2)
    assert torch_csv(schedule, transfers=False) == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
    first, second = torch_csv(schedule).splitlines()
    assert first == "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD"
    assert second == "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD"


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (build("pipedream", 2, 2), "torch's engine knows synchronous schedules only"),
        (build("chimera", 2, 2), "chimera has stage 0 on workers 0, 1"),
        (
            Schedule.parse("gpipe stages=1 microbatches=2\n0: 0F1 0F0 0B1 0B0"),
            "gpipe brings microbatches to the last stage in the order 1, 0",
        ),
    ],
    ids=["asynchronous", "held twice", "out of order"],
)
def test_what_torch_cannot_do(schedule: Schedule, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        torch_csv(schedule)
