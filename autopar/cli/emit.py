"""The command ``autopar emit plan.json MODEL -o DIR``: writes a plan's Python code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autopar import rules
from autopar.capture.saved import saved
from autopar.cli.flags import AS_JSON, BATCH, MODEL, PLAN, SEQUENCE
from autopar.cli.inputs import inputs
from autopar.cli.match import graph_of
from autopar.cli.output import save, spare, working, writable
from autopar.cli.stages import load_plan, stage_pages, staged_of
from autopar.cli.values import print_json
from autopar.emit import emit
from autopar.plans.pipeline_plan import PipelinePlan


def command(
    plan: PLAN,
    model: MODEL,
    output: Annotated[
        Path, typer.Option("-o", "--output", file_okay=False, help="Directory to write to.")
    ],
    as_json: AS_JSON = False,
    batch: BATCH = None,
    sequence: SEQUENCE = None,
) -> None:
    """Write the Python module of a plan for its model; for a pipeline, one module per stage."""
    writable(output)
    decided = load_plan(plan)
    with working("emitting"):
        if isinstance(decided, PipelinePlan):
            pages = stage_pages(staged_of(decided, model, batch, sequence))
        else:
            graph = graph_of(decided, model, batch, sequence)
            pages = {f"{graph.name}.py": emit(decided, graph, rules.localize, saved(graph))}
    files = {output / name: text for name, text in pages.items()}
    spare(inputs(plan, model=model), files)
    written = [save(text, path) for path, text in files.items()]
    if as_json:
        print_json({"written": written})
        return
    for path in written:
        typer.echo(f"wrote {path}")
