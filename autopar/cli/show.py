"""``autopar show plan.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from autopar.plan import Plan
from autopar.show import show_plan


def command(plan: Annotated[Path, typer.Argument(help="plan file")]) -> None:
    """Print a plan as tables."""
    Console(highlight=False).print(show_plan(Plan.load(plan)))
