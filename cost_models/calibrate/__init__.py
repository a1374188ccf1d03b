"""Calibration: measure the machine at hand and fit a profile's figures to it.

`measure` times operators and collectives inside one process, `processes` runs it in several at
once, `fit` draws lines through the times, `profile` makes a `Hardware` of the lines.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

from cost_models.calibrate.effort import QUICK, Effort
from cost_models.calibrate.fit import fit_line
from cost_models.calibrate.measure import Measured, combined, measure
from cost_models.calibrate.processes import run
from cost_models.calibrate.profile import profile
from cost_models.errors import CostModelError
from cost_models.machine import Hardware

__all__ = ["calibrate", "fit_line"]


def calibrate(
    quick: bool = False,
    ranks: Sequence[int] = (2, 4),
    progress: Callable[[str], None] | None = None,
    runs: int = 1,
) -> Hardware:
    """Measure this machine's cores and gloo among 1 and `ranks` local processes: a minute or more.

    The machine should be idle otherwise; `progress` hears of it where it is not, and the median of
    several `runs` then helps.

    Raises `CostModelError` where a process fails or takes longer than two minutes.
    """
    if not ranks or not all(isinstance(count, int) and count > 1 for count in ranks):
        raise CostModelError(f"ranks={ranks!r}: pass numbers of processes above one, as (2, 4).")
    tell = progress or (lambda _: None)
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > 0.5:
        tell(f"the machine is busy (load {os.getloadavg()[0]:.1f}): figures will be pessimistic")
    effort = QUICK if quick else Effort()
    found: dict[int, list[Measured]] = {}
    for _ in range(max(1, runs)):
        for count in (1, *sorted(set(ranks))):
            tell(f"measuring with {count} process{'es' if count > 1 else ''} ...")
            found.setdefault(count, []).append(run(count, partial(measure, effort)))
    return profile({count: combined(group, median, median) for count, group in found.items()})
