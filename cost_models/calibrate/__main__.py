"""Command line of the calibration: ``python -m cost_models.calibrate -o profile.toml``."""

from __future__ import annotations

import argparse

from cost_models.calibrate import calibrate
from cost_models.errors import CostModelError
from cost_models.hardware import save


def main() -> None:
    """Measure, report progress, write the profile."""
    parser = argparse.ArgumentParser(description="Calibrate the CPU profile of this machine.")
    parser.add_argument("-o", "--output", required=True, help="TOML file to write")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repetitions")
    parser.add_argument("--runs", type=int, default=1, help="take the median of several runs")
    options = parser.parse_args()
    try:
        save(calibrate(quick=options.quick, progress=print, runs=options.runs), options.output)
    except CostModelError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
