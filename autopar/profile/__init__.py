"""A model's operators timed on the device at hand, and a real step beside its prediction.

`wanted` says which calls are worth timing, `bench` makes them runnable, `measure` times them in one
process or in several at once.  `trace` runs a step under `torch.profiler`, `compare` sets it beside the
plan, `running` does both on every rank.
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
