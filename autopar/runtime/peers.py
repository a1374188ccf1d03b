"""Processes of this machine as the kernel sees them: running, stopped, or ended.

The kernel knows better than any heartbeat: a process that computes for minutes without giving Python's
lock away is alive, and so is one that swaps, or that a debugger holds.
"""

from __future__ import annotations

import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

STOPPED = "T"
"""The state of a process that a signal stopped; a debugger's is a small letter."""
ENDED = ("", "Z", "X")


@dataclass(frozen=True)
class Peer:
    """A process by number, age and machine."""

    pid: int
    started: str
    """When, in ticks of the machine's clock: numbers of processes are used again."""
    machine: str
    """Boot and namespace; empty where the kernel tells nothing of processes."""
    host: str

    @classmethod
    def here(cls) -> Peer:
        """This process."""
        pid = os.getpid()
        _, started = _stat(pid)
        return cls(pid, started, _machine() if started else "", socket.gethostname())

    @property
    def is_near(self) -> bool:
        """Whether this process can see it."""
        return bool(self.machine) and self.machine == _machine()

    def state(self) -> str:
        """A letter as `ps` prints it; empty once it has ended."""
        state, started = _stat(self.pid)
        return state if started == self.started else ""

    def as_dict(self) -> dict[str, object]:
        """Its fields, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _stat(pid: int) -> tuple[str, str]:
    """State and start of a process; empty if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "", ""
    fields = text.rpartition(")")[2].split()  # its name may hold blanks and brackets
    return fields[0], fields[19]


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
