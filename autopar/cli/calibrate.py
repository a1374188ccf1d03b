"""``autopar calibrate -o profile.toml``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cost_models.hardware import save


def command(
    output: Annotated[Path, typer.Option("-o", "--output", help="TOML file to write")],
    quick: Annotated[bool, typer.Option(help="fewer sizes and repetitions")] = False,
) -> None:
    """Measure this machine's cores and gloo, and write a hardware profile."""
    from cost_models.calibrate import calibrate

    save(calibrate(quick=quick, progress=typer.echo), output)
    typer.echo(f"wrote {output}; use it with --hardware {output}")
