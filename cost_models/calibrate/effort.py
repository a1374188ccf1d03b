"""Sizes, repetitions and durations of a calibration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """Sizes and repetitions; a row of calls takes about `row_s`, but has at least one call."""

    matrices: tuple[int, ...] = (32, 64, 128, 256, 512)
    tensor_nbytes: tuple[int, ...] = (2**14, 2**17, 2**19, 2**20, 2**22, 2**24)
    message_nbytes: tuple[int, ...] = (2**10, 2**14, 2**18, 2**20, 2**22, 2**24)
    rounds: int = 3
    passes: int = 2
    curve_nbytes: tuple[int, ...] = (2**16, 2**19, 2**20, 2**21, 2**22)
    row_s: float = 0.01
    pause_s: float = 0.01
    """Pause before each row of collectives, in place of training's compute between them: a rate limiter
    may let bursts pass after idle time."""
    crowd_s: float = 0.2
    """Duration of a round that measures the wall time per second of CPU time while all ranks compute."""
    waiting_rows: int = 15
    """Number of rows in which ranks alternate between compute and an all-reduce."""
    device: str = "cpu"
    """Device of the messages, and of the compute that overlaps with them."""


QUICK = Effort(
    matrices=(32, 128, 256),
    tensor_nbytes=(2**14, 2**20),
    message_nbytes=(2**10, 2**18),
    rounds=2,
    passes=1,
    curve_nbytes=(2**16, 2**20),
    row_s=0.002,
    crowd_s=0.05,
    waiting_rows=1,
)
