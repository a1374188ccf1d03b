"""How small a gap between an answer and its bound has to be that is worth no more work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Care:
    """Gaps, relative to the answer's cost.

    close  smaller ones are reported as they are
    wide   larger ones are branched on
    """

    close: float
    wide: float


THOROUGH = Care(close=5e-4, wide=2e-3)
FAIR = Care(close=2e-3, wide=5e-3)
"""For a stage of several: the pipeline keeps pace with the slowest."""
