"""``autopar show plan.json [MODEL]``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from autopar.cli.match import graph_of
from autopar.cli.models import BATCH, MODEL_HELP, SEQUENCE
from autopar.cli.output import console
from autopar.cli.stages import load_plan, staged_of
from autopar.pipeline_plan import PipelinePlan
from autopar.rules import coverage
from autopar.show import coverage_line, show_operators, show_pipeline, show_plan


def command(
    plan: Annotated[Path, typer.Argument(help="Plan file.")],
    model: Annotated[
        str | None, typer.Argument(help=f"Names operators by module: {MODEL_HELP}.")
    ] = None,
    batch: BATCH = None,
    sequence: SEQUENCE = None,
) -> None:
    """Print a plan as tables: costs, parameters, communication, operators, conversions."""
    decided = load_plan(plan)
    if isinstance(decided, PipelinePlan):
        if model:
            staged_of(decided, model, batch, sequence)
        console().print(show_pipeline(decided))
        return
    graph = graph_of(decided, model, batch, sequence) if model else None
    out = console()
    out.print(show_plan(decided, graph), "", show_operators(decided, graph), sep="\n")
    if graph is not None:
        out.print("", Text(coverage_line(coverage(graph))), sep="\n")
