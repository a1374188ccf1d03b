"""``autopar show plan.json [MODEL]``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from autopar.cli.flags import AS_JSON, BATCH, MODEL_HELP, PLAN, SEQUENCE
from autopar.cli.match import graph_of
from autopar.cli.output import console
from autopar.cli.stages import load_plan, staged_of
from autopar.cli.values import outlined, print_json
from autopar.errors import InputError
from autopar.graph import Graph
from autopar.plans.focus import holding, stage_plan, tensor_facts, within_block
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.rules import coverage
from autopar.show import (
    coverage_line,
    show_block,
    show_operators,
    show_pipeline,
    show_plan,
    show_tensor,
)


def command(
    plan: PLAN,
    model: Annotated[
        str | None, typer.Argument(help=f"Names operators by module: {MODEL_HELP}.")
    ] = None,
    stage: Annotated[
        int | None, typer.Option(min=0, help="Of a pipeline: this stage's own plan.")
    ] = None,
    block: Annotated[
        str | None, typer.Option(help="Only what lies in a module, such as model.layers.0.mlp.")
    ] = None,
    tensor: Annotated[
        str | None, typer.Option(help="One parameter or tensor: types, parts, conversions.")
    ] = None,
    as_json: AS_JSON = False,
    batch: BATCH = None,
    sequence: SEQUENCE = None,
) -> None:
    """Print a plan as tables: costs, parameters, communication, operators, conversions.

    Repeated blocks are folded; what your constraints speak of is marked.
    """
    if model is None and (batch is not None or sequence is not None):
        raise InputError("--batch and --sequence are of a MODEL: pass it behind the plan.")
    decided = load_plan(plan)
    graph: Graph | None = None
    if isinstance(decided, PipelinePlan):
        made = staged_of(decided, model, batch, sequence) if model else None
        if stage is not None:
            decided, number = stage_plan(decided, stage), stage
            graph = made.stages.graphs[number] if made else None
    elif stage is not None:
        raise InputError("This plan has no stages: leave --stage out.")
    else:
        graph = graph_of(decided, model, batch, sequence) if model else None
    _printed(decided, graph, block, tensor, as_json)


def _printed(
    plan: Plan | PipelinePlan,
    graph: Graph | None,
    block: str | None,
    tensor: str | None,
    as_json: bool,
) -> None:
    """All of it, or what was asked for."""
    out = console()
    if tensor is not None or block is not None:
        if tensor is not None and block is not None:
            raise InputError("Pass --block or --tensor, not both.")
        if isinstance(plan, PipelinePlan):
            plan = holding(plan, tensor or block or "")
            graph = None
        if tensor is not None:
            found = tensor_facts(plan, tensor)
            print_json(found) if as_json else out.print(show_tensor(found))
            return
        plan = within_block(plan, graph, block or "")
    if as_json:
        print_json(outlined(plan))
    elif isinstance(plan, PipelinePlan):
        out.print(show_pipeline(plan))
    elif block is not None:
        out.print(show_block(plan, graph))
    else:
        out.print(show_plan(plan, graph), "", show_operators(plan, graph), sep="\n")
        if graph is not None:
            out.print("", Text(coverage_line(coverage(graph))), sep="\n")
