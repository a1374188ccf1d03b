"""The command line: one command per file; every error is one message, never a traceback."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.markup import escape

from autopar.cli import calibrate, emit, hardware, plan, presets, show
from autopar.errors import AutoparError
from cost_models.errors import CostModelError

app = typer.Typer(
    help="Plan, inspect and emit parallel PyTorch models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("plan")(plan.command)
app.command("show")(show.command)
app.command("emit")(emit.command)
app.command("hardware")(hardware.command)
app.command("presets")(presets.command)
app.command("calibrate")(calibrate.command)


def main() -> None:
    """The console script."""
    try:
        app()
    except (AutoparError, CostModelError) as error:
        Console(stderr=True).print(f"[red]error:[/red] {escape(str(error))}", soft_wrap=True)
        sys.exit(1)
