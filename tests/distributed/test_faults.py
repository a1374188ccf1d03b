"""A rank that fails takes the others down within seconds, with its message."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "failing.py"
ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 100.0
"""Start of the processes included, which takes most of it on a busy machine."""


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **more}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("script", "how"),
    [
        pytest.param("failing.py", "raise", marks=pytest.mark.slow),
        ("failing.py", "kill"),
        pytest.param("failing_pipeline.py", "raise", marks=pytest.mark.slow),
        pytest.param("failing_pipeline.py", "kill", marks=pytest.mark.slow),
    ],
)
def test_under_torchrun(script: str, how: str) -> None:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(SCRIPT.with_name(script)), how, "1",
    ]  # fmt: skip
    started = time.monotonic()
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode != 0
    assert time.monotonic() - started < LIMIT_S
    assert "ValueError: broken on purpose" in done.stderr or how == "kill"
    assert "local_rank: 1" in done.stderr


def run_by_hand(how: str, failing: int, ranks: int) -> list[tuple[int, str]]:
    """Status and standard error of each rank, where nobody cleans up."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(ranks):
        place = environment(
            RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )  # fmt: skip
        command = [sys.executable, str(SCRIPT), how, str(failing)]
        processes.append(
            subprocess.Popen(
                command, env=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    try:
        errors = [process.communicate(timeout=LIMIT_S)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, text) for process, text in zip(processes, errors, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("failing", [1, 2])
def test_without_a_launcher(failing: int) -> None:
    """The other ranks end by themselves and say why."""
    for rank, (status, text) in enumerate(run_by_hand("raise", failing, 4)):
        assert status != 0
        if rank == failing:
            assert "ValueError: broken on purpose" in text
        else:
            assert f"rank {failing} failed first: ValueError: broken on purpose" in text


@pytest.mark.slow
def test_one_that_leaves_is_not_waited_for() -> None:
    """Before the first step, in which ranks compare their batches."""
    (status, text), (left, _) = run_by_hand("leave", 1, 2)
    assert status != 0 and left == 0
    assert (
        "Rank 1 ended before it compared the next call, which is a training step on this rank"
        in text
    )


@pytest.mark.slow
def test_the_watch_ends_before_the_interpreter() -> None:
    """A thread inside the store when the interpreter goes down aborts the process; half of the time."""
    command = [sys.executable, str(SCRIPT.parent / "ending.py")]
    processes = [
        subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    errors = [process.communicate(timeout=LIMIT_S)[1] for process in processes]
    assert all(process.returncode == 0 for process in processes), errors
