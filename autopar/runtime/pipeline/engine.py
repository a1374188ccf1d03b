"""The interface of engines, which execute a worker's action list.

There are two: ours, and PyTorch's (`torch_engine.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from autopar.runtime.pipeline.built import Built
from autopar.runtime.pipeline.step import Step

Engine = Callable[[Built], Callable[[Step], None]]
"""Returns a function that runs this rank's part of a step.  Raises for a plan that it cannot run."""


def own_engine(built: Built) -> Callable[[Step], None]:
    """Run the actions one after another, in the order of the list."""
    return lambda step: step.run(built.plan.schedule.workers[built.worker])
