"""How much a calibration measures, and how long."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """What is measured and how long: each row of calls takes about `row_s`, or one call."""

    matrices: tuple[int, ...] = (32, 64, 128, 256, 512)
    tensor_nbytes: tuple[int, ...] = (2**14, 2**17, 2**19, 2**20, 2**22, 2**24)
    message_nbytes: tuple[int, ...] = (2**10, 2**14, 2**18, 2**20, 2**22, 2**24)
    rounds: int = 3
    passes: int = 2
    curve_nbytes: tuple[int, ...] = (2**16, 2**19, 2**20, 2**21, 2**22)
    row_s: float = 0.01
    pause_s: float = 0.01
    """Before each row of collectives, as training computes between them: what limits a link may let
    bursts through after a rest."""
    crowd_s: float = 0.2
    """For so long all ranks compute in a round that tells how long a core's second lasts."""
    waiting_rows: int = 15
    """Of turns in which ranks compute and meet."""
    device: str = "cpu"
    """Where messages lie, and what is computed beside them."""


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
