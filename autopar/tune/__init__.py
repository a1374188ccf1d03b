"""Runs a model's best plans, corrects the prices by what was measured, and plans again.

`search` decides on rank 0 what is tried next, and `trial` trains some steps of it on every rank.
`correction` fits the prices of this cluster to the measured steps.
"""

from __future__ import annotations

from autopar.tune.ask import Ask
from autopar.tune.record import Trial, Tuned
from autopar.tune.search import Tuning
from autopar.tune.tune import Tune

__all__ = ["Ask", "Trial", "Tune", "Tuned", "Tuning"]
