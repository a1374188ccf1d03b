"""Everything autopar raises on purpose.

    AutoparError
    ├── InputError            what the user passed does not fit: names, shapes, missing arguments
    │   ├── MeshError         a mesh that is malformed or does not match the world
    │   ├── PlacementError    a type or sharding that is malformed or does not fit a shape
    │   ├── ScheduleError     a schedule that breaks its own order, hangs, or does not fit its sizes
    │   ├── ConstraintError   a constraint that matches nothing or cannot be met
    │   │   └── ClashError    constraints of which each could be met, but not all of them
    │   ├── PaddingError      a dim that cannot be padded without changing what is computed
    │   └── CheckpointError   a checkpoint that is damaged, does not fit, or cannot be written
    ├── CaptureError          the model cannot be captured without changing what it computes
    ├── RuleError             an operator's rule is malformed or missing
    ├── InfeasibleError       no plan meets the constraints
    │   └── OverLimitError    none fits into the memory
    ├── PlanError             a plan file is corrupt, foreign, or does not belong to this model
    ├── SourceError           an emitted (perhaps edited) file does not fit its plan
    ├── RankMismatchError     ranks disagree about model, plan or batch
    ├── RankFailedError       another rank failed; carries that rank's message
    └── InternalError         a value broke its own invariant: a defect of autopar, please report it

Each message names what the user wrote and what to do next.
"""

from __future__ import annotations

import math


class AutoparError(Exception):
    """Base of every error that autopar raises on purpose."""


class InputError(AutoparError, ValueError):
    """What the user passed does not fit."""


class MeshError(InputError):
    """A mesh is malformed or does not match the number of processes."""


class PlacementError(InputError):
    """A type or a sharding is malformed, or does not fit a tensor's shape."""


class ConstraintError(InputError):
    """A constraint matches nothing, or no candidate satisfies it."""


class ClashError(ConstraintError):
    """Each of some constraints could be met, but not all of them; the message has their lines."""


class ScheduleError(InputError):
    """A schedule breaks its own order, hangs, takes too much memory, or does not fit its sizes."""


class PaddingError(InputError):
    """A dim cannot be padded: some operator would see the padding."""


class CheckpointError(InputError):
    """A checkpoint is damaged, does not fit what it is loaded into, or cannot be written."""


class CaptureError(AutoparError):
    """The model cannot be captured without silently changing what it computes."""


class RuleError(AutoparError):
    """An operator's rule is malformed, or an operator has none."""


class InfeasibleError(AutoparError):
    """No plan meets the constraints; the message names the one that binds."""


class OverLimitError(InfeasibleError):
    """No assignment fits into the limit; carries the bytes of the smallest."""

    def __init__(self, message: str, least_nbytes: float = math.nan) -> None:
        super().__init__(message)
        self.least_nbytes = least_nbytes


class PlanError(AutoparError):
    """A plan is corrupt, written by another schema, or belongs to another model."""


class SourceError(AutoparError):
    """An emitted file, perhaps edited by the user, does not fit its plan."""


class RankMismatchError(AutoparError):
    """Ranks disagree about the model, the plan or the batch."""


class RankFailedError(AutoparError):
    """Another rank failed; its message is carried here."""


class InternalError(AutoparError):
    """A value broke its own invariant."""
