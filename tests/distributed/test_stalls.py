"""Ranks that wait for each other in different places end with a message that names both."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.distributed.test_faults import environment

SCRIPT = Path(__file__).with_name("stalled.py")


def run(how: str, preset: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(SCRIPT), how, preset,
    ]  # fmt: skip
    return subprocess.run(
        command, env=environment(AUTOPAR_STALL_S="3"), capture_output=True, text=True, timeout=90,
        check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "preset", "words"),
    [
        ("backward", "fsdp", "backward"),
        ("backward", "ddp", "backward"),
        ("clip", "fsdp", "clip_grad_norm_"),
    ],
)
def test_both_places_are_named(how: str, preset: str, words: str) -> None:
    started = time.monotonic()
    done = run(how, preset)
    assert done.returncode != 0 and time.monotonic() - started < 60
    assert "rank 1 is in a forward at" in done.stderr and "stalled.py:" in done.stderr, done.stderr
    assert f"while rank 0 is in a {words} at" in done.stderr, done.stderr


@pytest.mark.slow
def test_a_slow_rank_is_waited_for() -> None:
    done = run("slow", "fsdp")
    assert done.returncode == 0 and done.stdout.count("done") == 2, done.stderr
