"""Calibration: measures the local machine and fits a hardware profile to it.

`measure` times operators and collectives in each process, `processes` runs it in several processes at
once, `fit` fits lines to the times, and `profile` builds a `Hardware` from them.  `cluster` calibrates
a cluster under ``torchrun``.
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
    """Measure this machine's cores, and gloo among `ranks` local processes; takes a minute or more.

    The machine should otherwise be idle; if it is not, `progress` receives a warning, and the median of
    several `runs` is more robust.

    Raises `CostModelError` if `ranks` are invalid, or if a process fails or takes more than two minutes.
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
