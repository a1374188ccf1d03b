"""Executes a stream of batches asynchronously: a `Step` whose actions name their weight versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autopar.pipeline.schedules.action import COMPUTE, Action
from autopar.runtime.pipeline.step import Step
from autopar.runtime.pipeline.versions import Versions


class Stream(Step):
    """A step over several batches; `advance` makes the next version of the weights."""

    def __init__(
        self, *args: Any, versions: Versions, advance: Callable[[], None], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._versions, self._advance = versions, advance

    def _do(self, action: Action) -> None:
        if action.kind == "U":
            self._advance()
            return
        computes = action.kind in COMPUTE
        if computes:
            self._versions.use(action.version)
        super()._do(action)
        if computes:
            self._versions.used(action.version)
