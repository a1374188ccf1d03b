"""The command ``autopar verify plan.json MODEL``: recomputes and checks a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from autopar.cli.flags import AS_JSON, BATCH, DATABASE, MODEL, PLAN, PRICED_WITH, SEQUENCE
from autopar.cli.match import captured_like, times_of
from autopar.cli.output import console, working
from autopar.cli.stages import load_plan, microbatch_of
from autopar.cli.values import print_json
from autopar.errors import PlanError
from autopar.explain.explained import hardware_called
from autopar.ir.graph import Graph
from autopar.ir.split import split
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.render.text import checks, verdicts
from autopar.sharding.asked import posed_for
from autopar.sharding.assemble import versions
from autopar.verify import Check, certify
from autopar.verify.pipeline import certify_pipeline
from autopar.verify.witness import Verdict, witness


def command(
    plan: PLAN,
    model: MODEL,
    hardware: PRICED_WITH = None,
    bound: Annotated[
        bool, typer.Option("--bound/--no-bound", help="Whether to prove the bound again.")
    ] = True,
    database: DATABASE = None,
    as_json: AS_JSON = False,
    batch: BATCH = None,
    sequence: SEQUENCE = None,
) -> None:
    """Check a plan against its model: all figures are computed again.

    The checks cover types, sizes, conversions, costs, memory and the bound, for which the solver runs
    again. For a pipeline they also cover cuts, schedule and the simulated step, but not the bound of
    the whole pipeline.  Then `spmd_types` derives the types of every emitted statement, by rules that
    share no code with autopar's. The output lists the statements that it cannot check.
    """
    decided = load_plan(plan)
    profile = hardware_called(decided, hardware)  # a profile with other figures makes a check fail
    times = times_of(decided, database, profile)
    with working("proving"):
        if isinstance(decided, PipelinePlan):
            graph = microbatch_of(decided, model, batch, sequence)
            found = certify_pipeline(decided, graph, profile, bound, times)
        else:
            graph = captured_like(decided, model, batch, sequence)
            found = certify(decided, posed_for(decided, graph, profile, times), bound)
        # The emitted statements of an incorrect plan prove nothing.
        said = _witnessed(decided, graph) if all(check.ok for check in found) else ()
    if as_json:
        print_json({"checks": found, "statements": said})
    else:
        console().print(checks(found), *([verdicts(said)] if said else []), sep="\n")
    _refuse(decided.versions, found)
    _refuse_contradicted(said)


def _witnessed(plan: Plan | PipelinePlan, graph: Graph) -> Sequence[Verdict]:
    """Return the verdicts of `spmd_types` on every statement of all stages."""
    if isinstance(plan, Plan):
        return witness(plan, graph)
    graphs = split(graph, plan.cuts).graphs
    return [verdict for each in plan.stages for verdict in witness(each.plan, graphs[each.stage])]


def _refuse(made_with: tuple[tuple[str, str], ...], found: Sequence[Check]) -> None:
    """Raise `PlanError` if a check failed; warn of other versions, whose effects the checks show."""
    stated = dict(made_with)
    other = [
        f"{name} {stated.get(name, '(unknown)')}, on this machine it is {now}"
        for name, now in versions()
        if stated.get(name) != now
    ]
    if other:
        said = Text(f"warning: the plan was made with {'; '.join(other)}.", style="yellow")
        console(stderr=True).print(said, soft_wrap=True)
    failed = [f"{check.name}: {check.what}" for check in found if not check.ok]
    if failed:
        raise PlanError("The plan is refused.\n- " + "\n- ".join(failed))


def _refuse_contradicted(found: Sequence[Verdict]) -> None:
    wrong = [verdict for verdict in found if verdict.kind == "contradicts"]
    if wrong:
        first = wrong[0]
        raise PlanError(
            f"spmd_types contradicts {len(wrong)} of {len(found)} statements of the plan; the "
            f"first is\n  {first.statement}\n{first.words}."
        )
