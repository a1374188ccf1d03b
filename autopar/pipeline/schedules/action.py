"""An action of a pipeline schedule.  Its printed form, such as ``2F0``, can be parsed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from autopar.errors import ScheduleError

Kind = Literal[
    "F", "B", "I", "W", "U", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "REDUCE", "TIE"
]  # fmt: skip
"""The kind of an action.

F               forward of one microbatch through one stage
B               the whole backward of one microbatch
I, W            the backward in two halves: gradient of the inputs, then of the weights
U               update of the stage's weights; only in the lists of asynchronous schedules
SEND_F, RECV_F  activations to a later stage, from an earlier one (`peer`)
SEND_B, RECV_B  gradients to an earlier stage, from a later one (`peer`)
REDUCE          sum of a stage's gradients over all workers that hold the stage
TIE             sum of tied weights' gradients over the stages that share them

`U`, `REDUCE` and `TIE` do not belong to one microbatch: their `microbatch` counts updates, from 0.
"""

COMPUTE: frozenset[Kind] = frozenset(("F", "B", "I", "W"))
SENDS: frozenset[Kind] = frozenset(("SEND_F", "SEND_B"))
RECEIVES: frozenset[Kind] = frozenset(("RECV_F", "RECV_B"))
COLLECTIVES: frozenset[Kind] = frozenset(("REDUCE", "TIE"))

_FORM = re.compile(
    r"(?P<stage>\d+)(?P<kind>[A-Z]+(?:_[FB])?)(?P<microbatch>\d+)"
    r"(?:@(?P<version>\d+))?(?:[<>](?P<peer>\d+))?"
)


@dataclass(frozen=True, slots=True)
class Action:
    """``3F0``, ``3SEND_B0>2`` (to stage 2), ``2RECV_B0<3`` (from stage 3), ``2F5@1`` (on version 1).

    `version` is the number of updates applied to the weights that F, B, I or W use; synchronous
    schedules only have version 0.
    """

    kind: Kind
    stage: int
    microbatch: int
    peer: int | None = None
    version: int = 0

    def __str__(self) -> str:
        version = f"@{self.version}" if self.version else ""
        sign = "<" if self.kind in RECEIVES else ">"
        peer = "" if self.peer is None else f"{sign}{self.peer}"
        return f"{self.stage}{self.kind}{self.microbatch}{version}{peer}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Read the form that `str` writes; raise `ScheduleError` if the text is not one."""
        found = _FORM.fullmatch(text.strip())
        if not found or found["kind"] not in get_args(Kind):
            raise ScheduleError(
                f"Cannot read the action {text!r}; write <stage><kind><microbatch>, like 2F0, or "
                f"2SEND_F0>3 with the other stage, or 2F5@1 with the weights' version."
            )
        peer = None if found["peer"] is None else int(found["peer"])
        kind: Kind = found["kind"]  # type: ignore[assignment]
        version = int(found["version"] or 0)
        made = cls(kind, int(found["stage"]), int(found["microbatch"]), peer, version)
        if str(made) != text.strip():
            raise ScheduleError(f"Cannot read the action {text!r}; did you mean {made}?")
        return made


def forward(stage: int, microbatch: int) -> Action:
    """Return F, the forward."""
    return Action("F", stage, microbatch)


def backward(stage: int, microbatch: int) -> Action:
    """Return B, the whole backward."""
    return Action("B", stage, microbatch)


def input_gradient(stage: int, microbatch: int) -> Action:
    """Return I, the first half of the backward, for which earlier stages wait."""
    return Action("I", stage, microbatch)


def weight_gradient(stage: int, microbatch: int) -> Action:
    """Return W, the second half of the backward, for which only the update waits."""
    return Action("W", stage, microbatch)
