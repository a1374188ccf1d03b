"""``python -m cost_models.calibrate -o profile.toml``."""

from __future__ import annotations

import argparse

from cost_models.calibrate import calibrate
from cost_models.hardware import save


def main() -> None:
    """Measure, report progress, write the profile."""
    parser = argparse.ArgumentParser(description="Calibrate the CPU profile of this machine.")
    parser.add_argument("-o", "--output", required=True, help="TOML file to write")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repetitions")
    options = parser.parse_args()
    save(calibrate(quick=options.quick, progress=print), options.output)


if __name__ == "__main__":
    main()
