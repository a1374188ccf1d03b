"""The exceptions that autopar raises deliberately.

    AutoparError
    ├── InputError            an argument is invalid: names, shapes, missing arguments
    │   ├── MeshError         a mesh that is malformed or does not match the world
    │   ├── PlacementError    a type or sharding that is malformed or does not fit a shape
    │   ├── ScheduleError     a schedule that violates dependencies, deadlocks, or does not fit its sizes
    │   ├── ConstraintError   a constraint that matches nothing or cannot be met
    │   │   └── ClashError    constraints that can be met one by one but not together
    │   ├── PaddingError      a dim that cannot be padded without changing the result
    │   └── CheckpointError   a checkpoint that is damaged, does not fit, or cannot be written
    ├── CaptureError          the model cannot be captured without changing what it computes
    ├── RuleError             an operator's rule is malformed or missing
    ├── InfeasibleError       no plan meets the constraints
    │   └── OverLimitError    no plan fits into the memory limit
    ├── PlanError             a plan is corrupt, has another schema version, or is for another model
    ├── SourceError           an emitted (perhaps edited) file does not fit its plan
    ├── RankMismatchError     ranks disagree about model, plan or batch
    ├── RankFailedError       another rank failed; carries that rank's message
    └── InternalError         a value violates its invariant: a bug in autopar, please report it

Each message names the user's input and a remedy.
"""

from __future__ import annotations

import math


class AutoparError(Exception):
    """Base class of all errors that autopar raises deliberately."""


class InputError(AutoparError, ValueError):
    """An argument is invalid or does not fit the model."""


class MeshError(InputError):
    """A mesh is malformed or does not match the number of processes."""


class PlacementError(InputError):
    """A type or a sharding is malformed, or does not fit a tensor's shape."""


class ConstraintError(InputError):
    """A constraint matches nothing, or no candidate satisfies it."""


class ClashError(ConstraintError):
    """Constraints can be met one by one but not together; the message lists their lines."""


class ScheduleError(InputError):
    """A schedule violates dependencies, deadlocks, exceeds the memory, or does not fit its sizes."""


class PaddingError(InputError):
    """A dim cannot be padded, because the padding would change some operator's result."""


class CheckpointError(InputError):
    """A checkpoint is damaged, does not fit what it is loaded into, or cannot be written."""


class CaptureError(AutoparError):
    """The model cannot be captured without silently changing what it computes."""


class RuleError(AutoparError):
    """An operator's rule is malformed or missing."""


class InfeasibleError(AutoparError):
    """No plan meets the constraints; the message names the binding one."""


class OverLimitError(InfeasibleError):
    """No plan fits into the memory limit; `least_nbytes` is the peak of the smallest one."""

    def __init__(self, message: str, least_nbytes: float = math.nan) -> None:
        super().__init__(message)
        self.least_nbytes = least_nbytes


class PlanError(AutoparError):
    """A plan is corrupt, has another schema version, or belongs to another model."""


class SourceError(AutoparError):
    """An emitted file, perhaps edited by the user, does not fit its plan."""


class RankMismatchError(AutoparError):
    """Ranks disagree about the model, the plan or the batch."""


class RankFailedError(AutoparError):
    """Another rank failed; the message is that rank's."""


class InternalError(AutoparError):
    """A value violates its invariant, which is a bug in autopar."""
