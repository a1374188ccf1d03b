"""``autopar verify plan.json MODEL``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from autopar.asked import posed_for
from autopar.certificate import Check, certify
from autopar.certificate.pipeline import certify_pipeline
from autopar.cli.match import captured_like, hardware_of
from autopar.cli.models import BATCH, MODEL_HELP, SEQUENCE
from autopar.cli.output import console
from autopar.cli.stages import load_plan, microbatch_of
from autopar.errors import PlanError
from autopar.graph import Graph
from autopar.pipeline_plan import PipelinePlan
from autopar.pricing.assemble import versions
from autopar.show import checks, verdicts
from autopar.split import split
from autopar.witness import Verdict, witness


def command(
    plan: Annotated[Path, typer.Argument(help="Plan file.")],
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    hardware: Annotated[
        str | None, typer.Option(help="Profile to price with; none: the plan's.")
    ] = None,
    bound: Annotated[
        bool, typer.Option("--bound/--no-bound", help="Whether to prove the bound again.")
    ] = True,
    batch: BATCH = None,
    sequence: SEQUENCE = None,
) -> None:
    """Check a plan against its model: every figure and claim in it is computed again from nothing.

    Types, sizes, conversions, costs, memory and the bound, which means solving again; of a pipeline
    also its cuts, its schedule and the step, simulated again.  Then `spmd_types` derives the types of
    every emitted statement, by rules that share no code with autopar's; where it cannot, that is said.
    """
    decided = load_plan(plan)
    if isinstance(decided, PipelinePlan):
        _verify_stages(decided, microbatch_of(decided, model, batch, sequence), hardware, bound)
        return
    graph = captured_like(decided, model, batch, sequence)
    posed = posed_for(decided, graph, hardware_of(decided, hardware))
    found = certify(decided, posed, bound)
    console().print(checks(found))
    _refuse(decided.versions, found)
    said = witness(decided, graph)
    console().print(verdicts(said))
    _refuse_contradicted(said)


def _verify_stages(plan: PipelinePlan, graph: Graph, hardware: str | None, bound: bool) -> None:
    found = certify_pipeline(plan, graph, hardware_of(plan, hardware), bound)
    console().print(checks(found))
    _refuse(plan.versions, found)
    graphs = split(graph, plan.cuts).graphs
    said = [verdict for each in plan.stages for verdict in witness(each.plan, graphs[each.stage])]
    console().print(verdicts(said))
    _refuse_contradicted(said)


def _refuse(made_with: tuple[tuple[str, str], ...], found: Sequence[Check]) -> None:
    failed = [f"{check.name}: {check.what}" for check in found if not check.ok]
    if not failed:
        return
    other = [
        f"{name} {then}, here is {now}"
        for (name, then), (_, now) in zip(made_with, versions(), strict=False)
        if then != now
    ]
    because = f"\nIt was made with {'; '.join(other)}." if other else ""
    raise PlanError("The plan is refused.\n- " + "\n- ".join(failed) + because)


def _refuse_contradicted(found: Sequence[Verdict]) -> None:
    wrong = [verdict for verdict in found if verdict.kind == "contradicts"]
    if wrong:
        first = wrong[0]
        raise PlanError(
            f"spmd_types contradicts {len(wrong)} of {len(found)} statements of the plan, first\n"
            f"  {first.statement}\n{first.words}."
        )
