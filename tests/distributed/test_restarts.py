"""Attempts of one launch share a store, and nothing in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.by_hand import LIMIT_S, environment, free_port

SCRIPT = Path(__file__).parent / "restarted.py"


def torchrun(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *arguments]


def check(folder: Path) -> None:
    """Both ranks came to the end in one attempt, on one seed."""
    ended = sorted(path.name for path in folder.iterdir())
    assert [name.partition("_")[2] for name in ended] == ["0", "1"], ended
    assert len({path.read_text() for path in folder.iterdir()}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("how", ["raise", "kill"])
def test_the_next_attempt_is_new(tmp_path: Path, how: str) -> None:
    command = torchrun(
        "--standalone", "--max-restarts", "1", "--nproc-per-node", "2", str(SCRIPT), str(tmp_path),
        how,
    )  # fmt: skip
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=2 * LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    check(tmp_path)


@pytest.mark.slow
def test_nodes_that_count_attempts_differently(tmp_path: Path) -> None:
    """Only the agent whose rank failed counts one more: names made of the count would differ."""
    port = str(free_port())
    command = torchrun(
        "--nnodes", "2", "--max-restarts", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "restarts", str(SCRIPT), str(tmp_path),
        "kill",
    )  # fmt: skip
    agents = [
        subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        errors = [agent.communicate(timeout=2 * LIMIT_S)[1] for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    assert [agent.returncode for agent in agents] == [0, 0], errors
    check(tmp_path)
