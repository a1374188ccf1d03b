"""The state of processes on this machine, from the kernel: running, stopped, or ended.

The kernel is more reliable than a heartbeat: a process that computes for minutes without releasing the
GIL is alive, and so is one that swaps, or that a debugger holds.
"""

from __future__ import annotations

import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

STOPPED = "T"
"""The state of a process that a signal stopped; one held by a debugger has a lower-case letter."""
ENDED = ("", "Z", "X")


@dataclass(frozen=True)
class Peer:
    """A process, identified by pid, start time and machine."""

    pid: int
    started: str
    """Start time in clock ticks since boot, as pids are reused."""
    machine: str
    """Boot id and pid namespace; empty if the kernel has no /proc."""
    host: str

    @classmethod
    def here(cls) -> Peer:
        """Return the current process."""
        pid = os.getpid()
        _, started = _stat(pid)
        return cls(pid, started, _machine() if started else "", socket.gethostname())

    @property
    def is_near(self) -> bool:
        """Whether the current process can see it."""
        return bool(self.machine) and self.machine == _machine()

    def state(self) -> str:
        """Return its state letter as `ps` prints it; empty once it has ended."""
        state, started = _stat(self.pid)
        return state if started == self.started else ""

    def as_dict(self) -> dict[str, object]:
        """Return its fields, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _stat(pid: int) -> tuple[str, str]:
    """Return state and start time of a process; empty if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "", ""
    fields = text.rpartition(")")[2].split()  # its name may contain spaces and brackets
    return fields[0], fields[19]


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
