"""The command ``autopar diff a.json b.json``: the differences of two plans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autopar.cli.flags import AS_JSON, PLAN
from autopar.cli.output import console
from autopar.cli.stages import load_plan
from autopar.cli.values import print_json
from autopar.render.text import show_difference


def command(
    before: PLAN,
    after: Annotated[Path, typer.Argument(help="Another plan of the same model.")],
    as_json: AS_JSON = False,
) -> None:
    """Show how the second plan differs from the first, and what the differences cost.

    The tables have mesh, stages, types of parameters and operators, recomputation, time and memory.
    """
    found = load_plan(before).diff(load_plan(after))
    if as_json:
        print_json(found)
    else:
        console().print(show_difference(found))
