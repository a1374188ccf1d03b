"""What was timed, how long it took, and the setting in which that is true."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cost_models.curves import Direction
from cost_models.errors import CostModelError
from cost_models.names import DTYPES
from cost_models.ranges import RANGES, TAKEN


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
    """What a roofline knows of one pass: operations, bytes that are read and written, and whose.

    `calls`: of the framework's operators, where it is made of several; `between`: bytes that those
    read and write that move what the others compute, so that nothing hides them.
    """

    flops: float
    nbytes: float
    dtype: str
    op: str = ""
    direction: Direction = "forward"
    calls: int = 1
    between: float = 0.0


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

    def check(self) -> None:
        """Raise `CostModelError` unless every figure is a number that can be, and every name a text."""
        call = self.call
        for key, value, wanted in self._figures():
            is_number = isinstance(value, int | float) and math.isfinite(value)
            if not (is_number and RANGES[wanted](value)):
                raise CostModelError(f"{key} of {call.text!r} is {value!r}, not {wanted}.")
        if not (isinstance(self.rows, int) and self.rows >= 1):
            raise CostModelError(f"rows of {call.text!r} is {self.rows!r}, not 1 or more.")
        for name in (call.op, call.text, call.family, call.forward.dtype, self.date):
            if not isinstance(name, str):
                raise CostModelError(f"{call.text!r} has {name!r} where a text belongs.")
        if call.forward.dtype not in DTYPES:
            raise CostModelError(
                f"{call.text!r} has {call.forward.dtype!r}, which is no dtype of torch's."
            )

    def _figures(self) -> Iterator[tuple[str, Any, str]]:
        """What they are called, and the range that they must be in."""
        call = self.call
        for way, work, took in (
            ("forward", call.forward, self.forward),
            ("backward", call.backward, self.backward),
        ):
            if work is not None:
                yield f"{way} flops", work.flops, "zero or more"
                yield f"{way} bytes", work.nbytes, "zero or more"
            if took is not None:
                yield f"{way} seconds", took.seconds, TAKEN
                yield f"{way} spread", took.spread, "zero or more"
