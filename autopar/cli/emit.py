"""``autopar emit plan.json MODEL -o DIR``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autopar import rules
from autopar.cli.match import graph_of
from autopar.cli.models import BATCH, MODEL_HELP, SEQUENCE
from autopar.cli.output import save
from autopar.cli.stages import load_plan, save_stages, staged_of
from autopar.emit import emit
from autopar.pipeline_plan import PipelinePlan


def command(
    plan: Annotated[Path, typer.Argument(help="Plan file.")],
    model: Annotated[str, typer.Argument(help=f"{MODEL_HELP}.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", file_okay=False, help="Directory to write to.")
    ],
    batch: BATCH = None,
    sequence: SEQUENCE = None,
) -> None:
    """Write the Python module of a plan for the model it was made for; of a pipeline one per stage."""
    decided = load_plan(plan)
    if isinstance(decided, PipelinePlan):
        for path in save_stages(staged_of(decided, model, batch, sequence), output):
            typer.echo(f"wrote {path}")
        return
    graph = graph_of(decided, model, batch, sequence)
    path = save(emit(decided, graph, rules.localize), output / f"{graph.name}.py")
    typer.echo(f"wrote {path}")
