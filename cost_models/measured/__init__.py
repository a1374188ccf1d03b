"""Measured operator times: what was timed, where it was timed, and what that says of other sizes.

`values` are calls, their times and the setting that times belong to; `timer` takes them, `database`
keeps them, `here` says what this machine is, and `times` answers for calls that were timed or not.
"""

from __future__ import annotations

from cost_models.measured.database import Database
from cost_models.measured.here import here
from cost_models.measured.times import Answer, Source, Times
from cost_models.measured.values import Call, Pass, Setting, Timed, Work

__all__ = [
    "Answer", "Call", "Database", "Pass", "Setting", "Source", "Timed", "Times", "Work", "here",
]  # fmt: skip
