"""``autopar verify plan.json MODEL``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autopar.cli.match import graph_of
from autopar.cli.models import BATCH, MODEL_HELP, SEQUENCE
from autopar.cli.output import console
from autopar.errors import PlanError
from autopar.plan import Plan
from autopar.show import verdicts
from autopar.witness import witness


def command(
    plan: Annotated[Path, typer.Argument(help="Plan file.")],
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    batch: BATCH = None,
    sequence: SEQUENCE = None,
) -> None:
    """Check a plan against its model: every type, twice, by rules that share no code.

    First by autopar's own rules: every operator and conversion is allowed, and sizes divide.  Then
    `spmd_types` derives the types of every emitted statement; where it cannot, that is said.
    """
    decided = Plan.load(plan)
    graph = graph_of(decided, model, batch, sequence)
    found = witness(decided, graph)
    console().print(verdicts(found))
    wrong = [verdict for verdict in found if verdict.kind == "contradicts"]
    if wrong:
        first = wrong[0]
        raise PlanError(
            f"spmd_types contradicts {len(wrong)} of {len(found)} statements of the plan, first\n"
            f"  {first.statement}\n{first.words}."
        )
