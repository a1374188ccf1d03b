"""``autopar emit plan.json MODEL -o DIR``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autopar import rules
from autopar.api import captured_for
from autopar.cli.models import MODEL_HELP, load
from autopar.emit import emit
from autopar.plan import Plan
from autopar.runtime.program import write


def command(
    plan: Annotated[Path, typer.Argument(help="plan file")],
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    output: Annotated[Path, typer.Option("-o", "--output", help="directory to write to")],
    batch: Annotated[int | None, typer.Option(help="global batch of hf: models")] = None,
    sequence: Annotated[int | None, typer.Option(help="sequence length of hf: models")] = None,
) -> None:
    """Write the Python module of a plan for the model it was made for."""
    decided = Plan.load(plan)
    loaded = load(model, batch, sequence)
    graph = captured_for(decided, loaded.model, loaded.inputs, loaded.loss)
    decided.check(graph)
    path = write(emit(decided, graph, rules.localize), output / f"{graph.name}.py")
    typer.echo(f"wrote {path}")
