"""Torch's pipeline engine, fed with our list and our stages, computes what we do."""

from __future__ import annotations

import pytest
import torch
from torch.torch_version import TorchVersion

from autopar.ir.blocks import Recompute
from autopar.pipeline.schedules import SCHEDULES, build
from tests.daily import daily
from tests.pipelines import Line
from tests.pool import Pool, WorkerError
from tests.witnessed import check_unlimited, check_witness

KNOWN = [name for name, known in SCHEDULES.items() if name != "chimera" and not known.asynchronous]
NAMES = ("gpt2", "llama", "architectures.t5", "architectures.unet")
LINES = [
    Line("gpt2", (4,), (2, 2), "zb-v", 4, preset="megatron"),
    Line("architectures.unet", (4,), (1, 1, 1, 1), "zb-h1", 2),
]


GREETS_ITSELF = torch.__version__ < TorchVersion("2.13")
"""Torch's engine sent a first message to the neighbours of a stage, also where they are on its own
worker, which gloo refuses."""


@pytest.mark.thorough
@pytest.mark.parametrize("line", daily(LINES, LINES[:1]), ids=str)
def test_equal(pool: Pool, line: Line) -> None:
    if line.schedule == "zb-v" and GREETS_ITSELF:
        pytest.skip("torch's engine before 2.13 sends to itself")
    pool.run(4, check_witness, line)


def test_limits_are_said_on_all_ranks(pool: Pool) -> None:
    pool.run(4, check_witness, Line("mlp", (4,), (1, 3), "1f1b", 2), "worker 1 has 3 of them")
    pool.run(4, check_witness, Line("mlp", (4,), (2, 2), "chimera", 2), "on workers 0, 1")
    pool.run(4, check_witness, Line("mlp", (4,), (2, 2), "zb-v", 2), "Constrain both to one layout")


@pytest.mark.slow
@pytest.mark.parametrize("schedule", KNOWN)
@pytest.mark.parametrize("workers", [2, 4])
def test_every_schedule(pool: Pool, schedule: str, workers: int) -> None:
    """One of the models each, in turn."""
    name = NAMES[(2 * (workers // 4) + list(KNOWN).index(schedule)) % len(NAMES)]
    microbatches = 2 * workers if schedule == "dualpipe-v" else 2
    line = Line(name, (workers,), (1,) * workers, schedule, microbatches)
    # Of T5's decoder the first self-attention, and the position bias that every layer reads, need
    # no encoder.
    splits = build(schedule, workers, microbatches).splits_backward
    is_missed = name == "architectures.t5" and splits
    pool.run(workers, check_witness, line, "needs weights but nothing" if is_missed else "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "schedule"),
    [
        ("ddp", "gpipe"), ("fsdp", "interleaved"), ("megatron", "zb-h2"),
        ("megatron_sp", "dualpipe-v"), ("fsdp", "dualpipe-v"), ("megatron_sp", "interleaved"),
    ],
)  # fmt: skip
def test_stages_of_two_devices(pool: Pool, preset: str, schedule: str) -> None:
    """Every other one with blocks recomputed."""
    recompute: Recompute = "full" if len(preset + schedule) % 2 else "none"
    line = Line("gpt2", (4,), (2, 2), schedule, 4, preset=preset, recompute=recompute)
    pool.run(4, check_witness, line)


@pytest.mark.slow
def test_what_torch_cannot_do(pool: Pool) -> None:
    """Once this test fails, torch leaves no weights out, and a clause of limits.py is to go."""
    line = Line("architectures.t5", (2,), (1, 1), "zb-v", 2)
    with pytest.raises(WorkerError, match=r"gradient of shared\.weight|the graph a second time"):
        pool.run(sum(line.mesh), check_unlimited, line)
