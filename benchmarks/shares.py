"""A host's share of this machine's processors: what runs there never has more, also while others wait.

Where ranks outnumber cores, a rank that waits would lend its core to the others, as no host does.  A
control group (Linux, as root) takes that away: in each period of `PERIOD_S` a host may compute for its
share of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PERIOD_S = 0.004
ROOT = Path("/sys/fs/cgroup")
LEFT = 0.9
"""Of the cores hosts get so much; the rest is for the links between them."""


def share_of(hosts: int, per_host: int) -> float | None:
    """Cores of each host; None where there are enough for all ranks."""
    cores = os.cpu_count() or 1
    return None if hosts * per_host <= cores else LEFT * cores / hosts


@contextmanager
def limited(name: str, cores: float) -> Iterator[Path]:
    """A control group of so many cores: a process that writes its id into the file is in it."""
    period, quota = round(1e6 * PERIOD_S), round(1e6 * PERIOD_S * cores)
    old = ROOT / "cpu"
    group = (old if old.is_dir() else ROOT) / name
    try:
        group.mkdir()
        if old.is_dir():
            (group / "cpu.cfs_period_us").write_text(str(period))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (group / "cpu.max").write_text(f"{quota} {period}")
    except OSError as error:
        raise SystemExit(
            f"{error}: hosts' shares of the cores need control groups, and root"
        ) from None
    try:
        yield group / "cgroup.procs"
    finally:
        group.rmdir()
