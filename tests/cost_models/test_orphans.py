"""Processes that work for another one end when that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import os, sys, time
from functools import partial
from pathlib import Path

from cost_models.calibrate.processes import run


def wait(folder):
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(100)


if __name__ == "__main__":
    run(2, partial(wait, sys.argv[1]))
"""


def is_there(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.thorough
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    script, folder = tmp_path / "job.py", tmp_path / "pids"
    script.write_text(SCRIPT)
    folder.mkdir()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, script, folder], env=env) as parent:
        end = time.monotonic() + 60
        while len(workers := [int(path.name) for path in folder.iterdir()]) < 2:
            assert time.monotonic() < end and parent.poll() is None
            time.sleep(0.1)
        parent.send_signal(signal.SIGKILL)
    end = time.monotonic() + 10
    while any(map(is_there, workers)) and time.monotonic() < end:
        time.sleep(0.1)
    left = [pid for pid in workers if is_there(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
