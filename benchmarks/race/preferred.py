"""Run a script, or ``-m MODULE``, before what else the machine does: others' noise is not of the race.

Linux groups processes by session for its scheduler, and `nice` acts inside a group only.  As root, where
there are such groups, this rank's group comes first; elsewhere nothing changes.
"""

from __future__ import annotations

import os
import runpy
import sys
from contextlib import suppress
from pathlib import Path

NICENESS = -20


def prefer() -> None:
    """This process, and those of its session."""
    with suppress(OSError):
        os.nice(NICENESS)
        Path("/proc/self/autogroup").write_text(str(NICENESS))


if __name__ == "__main__":
    prefer()
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "-m":
        sys.argv = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(sys.argv[0]).parent))
        runpy.run_path(sys.argv[0], run_name="__main__")
