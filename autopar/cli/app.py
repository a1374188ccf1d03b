"""The commands put together; what goes wrong on purpose ends here, in red and with exit code 1."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import Annotated, Any

import torch.distributed as dist
import typer
from rich.text import Text
from typer.core import TyperGroup

from autopar.cli import (
    calibrate,
    emit,
    explain,
    frontier,
    hardware,
    map,
    plan,
    presets,
    rules,
    show,
    solve,
    verify,
)
from autopar.cli.output import console
from autopar.errors import AutoparError
from autopar.garbage import uncollected
from cost_models.errors import CostModelError


class Commands(TyperGroup):
    """Turns errors that people can act upon into one message."""

    def invoke(self, ctx: Any) -> Any:  # typer brings a click of its own, or does not
        try:
            return super().invoke(ctx)
        except (AutoparError, CostModelError) as error:
            console(stderr=True).print(Text(f"error: {error}", style="red"), soft_wrap=True)
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=Commands,
    help="Plan, inspect and emit parallel PyTorch models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command("plan")(plan.command)
app.command("show")(show.command)
app.command("emit")(emit.command)
app.command("explain")(explain.command)
app.command("frontier")(frontier.command)
app.command("map")(map.command)
app.command("solve")(solve.command)
app.command("verify")(verify.command)
app.command("hardware")(hardware.command)
app.command("presets")(presets.command)
app.command("rules")(rules.command)
app.command("calibrate")(calibrate.command)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"autopar {version('autopar')}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Plan, inspect and emit parallel PyTorch models."""


def main() -> None:
    """The console script.

    It ends at once: taking all objects apart, which the system does better, takes a second.
    """
    try:
        with uncollected():
            app(prog_name="autopar")
    except SystemExit as end:
        if dist.is_initialized() or not isinstance(end.code, int):
            raise
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code)
