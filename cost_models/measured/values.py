"""Data classes of measured times: calls, their times, and the setting in which times are valid."""

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
    """The conditions under which times were measured; they are not valid in another setting.

    `device` is the name given by the driver or the system.  `threads` are those of one process, `ranks`
    the processes of the host that were busy at the same time, sharing `cores`; on an accelerator they
    do not matter and are 0.
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
    """The roofline's inputs for one pass: operations, bytes read and written, dtype and operator.

    `calls` is the number of framework operators of which a composite consists.  `between` are the bytes
    that its data-moving operators read and write; no arithmetic hides them.  `dims` are the local rows,
    columns and summed elements of a product, or key length and head size of attention; empty otherwise.
    """

    flops: float
    nbytes: float
    dtype: str
    op: str = ""
    direction: Direction = "forward"
    calls: int = 1
    between: float = 0.0
    dims: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """An operator on local shapes.  Calls of one `family` differ only in sizes.

    `text` identifies a call: operator, arguments, shapes, dtypes, and which tensors have gradients.
    """

    op: str
    text: str
    family: str
    forward: Work
    backward: Work | None


@dataclass(frozen=True, slots=True)
class Pass:
    """Median of several rows of calls, and spread: half the interquartile range over the median."""

    seconds: float
    spread: float


@dataclass(frozen=True, slots=True)
class Timed:
    """A call with its times, number of rows and date."""

    call: Call
    forward: Pass
    backward: Pass | None
    rows: int
    date: str

    def check(self) -> None:
        """Raise `CostModelError` unless all numbers are in range and all names are strings."""
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
                f"{call.text!r} has {call.forward.dtype!r}, which is not a dtype of torch."
            )

    def _figures(self) -> Iterator[tuple[str, Any, str]]:
        """Yield name, value and required range of every number."""
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
