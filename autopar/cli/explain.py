"""``autopar explain plan.json MODEL TARGET``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autopar.asked import posed_for
from autopar.cli.match import graph_of, hardware_of
from autopar.cli.models import BATCH, MODEL_HELP, SEQUENCE
from autopar.cli.output import console
from autopar.explain import explain
from autopar.plan import Plan
from autopar.show import explanation


def command(
    plan: Annotated[Path, typer.Argument(help="Plan file.")],
    model: Annotated[str, typer.Argument(help=f"{MODEL_HELP}.")],
    target: Annotated[
        str, typer.Argument(help="A tensor, operator or parameter, as `show` names it.")
    ],
    hardware: Annotated[
        str | None, typer.Option(help="Profile to price with; none: the plan's.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Alternatives to show.")] = 12,
    batch: BATCH = None,
    sequence: SEQUENCE = None,
) -> None:
    """What the step would cost with every other type of one tensor, all else decided anew.

    Where memory is limited or communication may hide behind compute, figures are lower bounds.
    """
    decided = Plan.load(plan)
    graph = graph_of(decided, model, batch, sequence)
    posed = posed_for(decided, graph, hardware_of(decided, hardware))
    console().print(explanation(explain(decided, posed, target), rows))
