"""Calibration: measure the machine at hand and fit the profile's figures to it.

Several local processes run the same small measurements at once, because ranks that share a host's
cores slow each other down.  Fits minimise relative errors and state them.
"""

from cost_models.calibrate.fit import fit_line
from cost_models.calibrate.run import calibrate

__all__ = ["calibrate", "fit_line"]
