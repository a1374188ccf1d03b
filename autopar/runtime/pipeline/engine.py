"""What interprets a worker's list of actions: ours, or PyTorch's (`torch_engine.py`)."""

from __future__ import annotations

from collections.abc import Callable

from autopar.runtime.pipeline.built import Built
from autopar.runtime.pipeline.step import Step

Engine = Callable[[Built], Callable[[Step], None]]
"""Refuses a plan that it cannot run; gives what runs this rank's part of a step."""


def own_engine(built: Built) -> Callable[[Step], None]:
    """The actions one after another, as they are listed."""
    return lambda step: step.run(built.plan.schedule.workers[built.worker])
