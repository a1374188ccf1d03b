"""What was timed, how long it took, and the setting in which that is true."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.curves import Direction


@dataclass(frozen=True, slots=True)
class Setting:
    """What times belong to; in another setting they mean nothing.

    `device` is what the driver or the system calls it.  `threads` are those of one process, `ranks`
    the processes of the host that were busy at the same time, sharing `cores`; where the work is done
    by an accelerator they do not count, and are 0.
    """

    device: str
    kind: str
    memory_bytes: float
    software: str
    threads: int = 0
    ranks: int = 0
    cores: int = 0

    def __str__(self) -> str:
        shared = f", threads {self.threads}, ranks {self.ranks} on {self.cores} cores"
        return f"{self.device}, {self.software}{shared if self.ranks else ''}"


@dataclass(frozen=True, slots=True)
class Work:
    """What a roofline knows of one pass: operations, bytes that are read and written, and whose."""

    flops: float
    nbytes: float
    dtype: str
    op: str = ""
    direction: Direction = "forward"


@dataclass(frozen=True, slots=True)
class Call:
    """An operator on local shapes.  Calls of one `family` differ in their sizes alone.

    `text` tells calls apart: operator, arguments, shapes, dtypes and what has a gradient.
    """

    op: str
    text: str
    family: str
    forward: Work
    backward: Work | None


@dataclass(frozen=True, slots=True)
class Pass:
    """The median of several rows of calls, and half the distance of their quartiles as a share of it."""

    seconds: float
    spread: float


@dataclass(frozen=True, slots=True)
class Timed:
    """A call with its times, from so many rows, on that day."""

    call: Call
    forward: Pass
    backward: Pass | None
    rows: int
    date: str
