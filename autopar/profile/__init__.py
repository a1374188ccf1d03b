"""Times a model's operators on the local device, and compares a traced step with its prediction.

`profiled_plan` selects the calls to time, `bench` makes them runnable, and `measure` times them in one
process or in several at once.  `trace` runs a step under `torch.profiler`, `compare` compares it with
the plan, and `running` does both on every rank.
"""

from __future__ import annotations

from autopar.profile.measure import Refused, measure
from autopar.profile.profiled_plan import ProfiledPlan, Timing, profile, profile_stages
from autopar.profile.running import Run, run_beside

__all__ = [
    "ProfiledPlan",
    "Refused",
    "Run",
    "Timing",
    "measure",
    "profile",
    "profile_stages",
    "run_beside",
]
