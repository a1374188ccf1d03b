"""Processes of a launch without a launcher: nobody cleans up, so each has to end by itself."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 100.0
"""Start of the processes included, which takes most of it on a busy machine."""


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **more}


@dataclass(frozen=True)
class Ended:
    """How one rank ended."""

    status: int | None
    error: str
    seconds: float


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def run(script: Path, arguments: list[str], ranks: int, **more: str) -> list[Ended]:
    """Status and standard error of each rank; None is the status of one that did not end."""
    port, began = free_port(), time.monotonic()
    files = [tempfile.TemporaryFile("w+") for _ in range(ranks)]  # noqa: SIM115
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments], stdout=subprocess.DEVNULL, stderr=file,
            start_new_session=True,
            env=environment(
                RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank),
                MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), **more,
            ),
        )
        for rank, file in enumerate(files)
    ]  # fmt: skip
    ends: dict[int, float] = {}
    while len(ends) < ranks and time.monotonic() - began < LIMIT_S:
        for rank, process in enumerate(processes):
            if rank not in ends and process.poll() is not None:
                ends[rank] = time.monotonic() - began
        if {process.returncode for process in processes} - {None} and _are_stopped(processes):
            break
        time.sleep(0.05)
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    statuses = [process.returncode for process in processes]
    for process in processes:
        process.wait()
    texts = []
    for file in files:
        file.seek(0)
        texts.append(file.read())
        file.close()
    return [
        Ended(status, text, ends.get(rank, LIMIT_S))
        for rank, (status, text) in enumerate(zip(statuses, texts, strict=True))
    ]


def _are_stopped(processes: list[subprocess.Popen[bytes]]) -> bool:
    """Whether all that have not ended are stopped by a signal."""
    left = [process.pid for process in processes if process.returncode is None]
    states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in left]
    return bool(left) and all(state == "T" for state in states)
