"""Builds asynchronous schedules as they run in training: a stream of batches, each with an update."""

from __future__ import annotations

from autopar.pipeline.schedules.registry import made_as_asked
from autopar.pipeline.schedules.schedule import Schedule


def stream(name: str, workers: int, batches: int, microbatches: int) -> Schedule:
    """Return a stream that begins empty and ends drained; `microbatches` are those of one batch."""
    return made_as_asked(name, workers, batches * microbatches, None, microbatches)


def typical(name: str, workers: int, microbatches: int) -> Schedule:
    """Return a stream that is long enough for every worker to reach its maximum memory."""
    return stream(name, workers, max(3, -(-2 * workers // microbatches)), microbatches)
