"""Asynchronous schedules as training runs them: so many batches in one stream, an update after each."""

from __future__ import annotations

from autopar.pipeline.schedules.registry import SCHEDULES
from autopar.pipeline.schedules.schedule import Schedule


def stream(name: str, workers: int, batches: int, microbatches: int) -> Schedule:
    """`microbatches` are those of one batch; the stream begins empty and ends drained."""
    return SCHEDULES[name].build(workers, batches * microbatches, microbatches)


def typical(name: str, workers: int, microbatches: int) -> Schedule:
    """A stream so long that every worker comes to keep as much as it ever does."""
    return stream(name, workers, max(3, -(-2 * workers // microbatches)), microbatches)
