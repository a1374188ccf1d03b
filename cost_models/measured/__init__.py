"""Measured operator times, their database, and interpolation to sizes that were not measured.

`values` defines calls, times and the setting in which times are valid.  `timer` measures times,
`database` stores them, `here` describes the local machine, and `times` looks up or interpolates them.
"""

from __future__ import annotations

from cost_models.measured.database import Database
from cost_models.measured.here import here
from cost_models.measured.times import Answer, Source, Times
from cost_models.measured.values import Call, Pass, Setting, Timed, Work

__all__ = [
    "Answer", "Call", "Database", "Pass", "Setting", "Source", "Timed", "Times", "Work", "here",
]  # fmt: skip
