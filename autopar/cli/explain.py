"""The command ``autopar explain plan.json MODEL TARGET``: the alternatives to a decision."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from autopar.cli.flags import AS_JSON, BATCH, DATABASE, MODEL, PLAN, PRICED_WITH, SEQUENCE
from autopar.cli.match import graph_of, times_of
from autopar.cli.output import console, watched, working
from autopar.cli.stages import load_plan, microbatch_of
from autopar.cli.values import print_json
from autopar.errors import InputError
from autopar.explain import ROWS, explain, explain_stage
from autopar.explain.explained import hardware_of
from autopar.explain.explanation import Alternative, Explanation
from autopar.ir.graph import Graph
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.render.text import explanation
from autopar.sharding.asked import posed_for


def command(
    plan: PLAN,
    model: MODEL,
    target: Annotated[
        str,
        typer.Argument(help="A tensor, operator, parameter or module, as `show` names it."),
    ],
    hardware: PRICED_WITH = None,
    rows: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of candidates of an operator or parameter to solve for, besides the "
            "one that splits nothing.",
        ),
    ] = ROWS,
    stage: Annotated[
        int | None, typer.Option(min=0, help="For a pipeline: explain the plan of this stage.")
    ] = None,
    database: DATABASE = None,
    as_json: AS_JSON = False,
    batch: BATCH = None,
    sequence: SEQUENCE = None,
) -> None:
    """Explain one choice: the alternatives, and what they would cost.

    Each alternative is a plan of its own, with everything else decided anew: its compute,
    communication by kind and axis, and memory, beside those of the choice. For a module the
    alternatives are its recomputation and each preset (`autopar presets`).
    """
    decided = load_plan(plan)
    if isinstance(decided, PipelinePlan):
        graph = microbatch_of(decided, model, batch, sequence)
    elif stage is not None:
        raise InputError("This plan has no stages: leave --stage out.")
    else:
        graph = graph_of(decided, model, batch, sequence)
    found = explained_of(decided, graph, target, hardware, database, rows, stage)
    if as_json:
        print_json(_content(found))
    else:
        console().print(explanation(found))


def explained_of(
    plan: Plan | PipelinePlan,
    graph: Graph,
    target: str,
    hardware: str | None,
    database: Path | None,
    rows: int = ROWS,
    stage: int | None = None,
) -> Explanation:
    """Return the explanation, with a progress bar; a pipeline's `graph` is that of one microbatch."""
    profile = hardware_of(plan, hardware)
    times = times_of(plan, database, profile)
    if isinstance(plan, PipelinePlan):
        return explain_stage(plan, graph, profile, times, target, stage, rows, _watched)
    with working("pricing the candidates"):
        posed = posed_for(plan, graph, profile, times)
    return explain(plan, posed, target, rows, _watched)


def _watched(every: Iterable[Alternative], total: int) -> Iterable[Alternative]:
    return watched(every, total, "solving again")


def _content(found: Explanation) -> dict[str, Any]:
    """Return the explanation as JSON data; alternatives refer to their plans by digest."""
    kept = (f.name for f in fields(found) if f.name != "alternatives")
    content: dict[str, Any] = {name: getattr(found, name) for name in kept}
    return content | {"alternatives": [_alternative(each) for each in found.alternatives]}


def _alternative(each: Alternative) -> dict[str, Any]:
    kept = {f.name: getattr(each, f.name) for f in fields(each) if f.name != "plan"}
    return kept | {
        "more_s": each.more_s,
        "objective_s": None if each.plan is None else each.plan.objective_s,
        "digest": None if each.plan is None else each.plan.digest,
    }
