"""The Typer application with all commands.  It prints expected errors in red and exits with code 1."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from importlib.metadata import version
from typing import Annotated, Any

import torch.distributed as dist
import typer
from typer.core import TyperGroup

from autopar.cli import (
    calibrate,
    compare,
    diff,
    emit,
    explain,
    export,
    fit,
    frontier,
    hardware,
    layer_stages,
    map,
    plan,
    presets,
    price,
    profile,
    report,
    rules,
    show,
    simulate,
    solve,
    tune,
    verify,
)
from autopar.cli.complaint import complain
from autopar.cli.examples import ending
from autopar.cli.messages import Flags
from autopar.cli.streams import lenient
from autopar.errors import AutoparError
from autopar.utils.gc import uncollected
from autopar.utils.messages import worded
from cost_models.errors import CostModelError

DEBUG = "--debug"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of writes for which there is no space."""


class Commands(TyperGroup):
    """Reports errors that the user can act upon as one message.

    With ``--debug``, anywhere on the line, the traceback is printed first.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move ``--debug`` to the front: it is an option of the group, but may follow any command."""
        if DEBUG in args[: args.index("--") if "--" in args else None]:
            args.remove(DEBUG)
            args.insert(0, DEBUG)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:  # Any: the context is click's or typer's own, by version
        try:
            with worded(Flags()):
                return super().invoke(ctx)
        except (AutoparError, CostModelError, OSError) as error:
            said = _error_text(error)
            if said is None:
                raise
            if ctx.params.get("debug"):
                traceback.print_exc()
            complain(said)
            raise typer.Exit(1) from None


def _error_text(error: Exception) -> str | None:
    """Return the message for the user; None for a system error without a file, unless a disk is full."""
    if not isinstance(error, OSError):
        return str(error)
    if error.errno in FULL:
        return f"The output cannot be written: {error.strerror}."
    if error.filename is None:
        return None
    return f"Cannot use {error.filename}: {error.strerror}. Correct the path, or its permissions."


app = typer.Typer(
    cls=Commands,
    help="Plan, inspect and emit parallel PyTorch models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
COMMANDS = {
    "plan": plan, "show": show, "emit": emit, "explain": explain, "compare": compare, "diff": diff,
    "frontier": frontier, "fit": fit, "map": map, "solve": solve, "stages": layer_stages,
    "verify": verify, "hardware": hardware, "presets": presets, "price": price, "export": export,
    "report": report, "rules": rules,
    "calibrate": calibrate, "profile": profile, "tune": tune, "simulate": simulate,
}  # fmt: skip
for _name, _module in COMMANDS.items():
    app.command(_name, epilog=ending(_name))(_module.command)


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
    debug: Annotated[
        bool, typer.Option(DEBUG, help="Show the traceback of an error; accepted in any position.")
    ] = False,
) -> None:
    """Plan, inspect and emit parallel PyTorch models."""


def main() -> None:
    """Run the console script.

    It exits without Python's finalisation, which takes a second.
    """
    lenient()
    try:
        with uncollected():
            app(prog_name="autopar")
    except SystemExit as end:
        if dist.is_initialized() or not isinstance(end.code, int):
            raise
        os._exit(_flushed(end.code))


def _flushed(code: int) -> int:
    """Flush the output and return the exit code; 1 if flushing fails."""
    try:
        sys.stdout.flush()
    except OSError as error:
        if code == 0 and error.errno != errno.EPIPE:
            complain(f"The output cannot be written: {error.strerror}.")
        return code or 1
    sys.stderr.flush()
    return code
