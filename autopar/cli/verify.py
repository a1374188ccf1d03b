"""``autopar verify plan.json MODEL``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from autopar.certificate import Check, certify
from autopar.cli.match import captured_like, hardware_of
from autopar.cli.models import BATCH, MODEL_HELP, SEQUENCE
from autopar.cli.output import console
from autopar.compiler import posed_for
from autopar.errors import PlanError
from autopar.plan import Plan
from autopar.pricing.assemble import versions
from autopar.show import checks, verdicts
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

    Types, sizes, conversions, costs, memory and the bound, which means solving again.  Then
    `spmd_types` derives the types of every emitted statement, by rules that share no code with
    autopar's; where it cannot, that is said.
    """
    decided = Plan.load(plan)
    graph = captured_like(decided, model, batch, sequence)
    posed = posed_for(decided, graph, hardware_of(decided, hardware))
    found = certify(decided, posed, bound)
    console().print(checks(found))
    _refuse(decided, found)
    said = witness(decided, graph)
    console().print(verdicts(said))
    _refuse_contradicted(said)


def _refuse(plan: Plan, found: Sequence[Check]) -> None:
    failed = [f"{check.name}: {check.what}" for check in found if not check.ok]
    if not failed:
        return
    other = [
        f"{name} {then}, here is {now}"
        for (name, then), (_, now) in zip(plan.versions, versions(), strict=False)
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
