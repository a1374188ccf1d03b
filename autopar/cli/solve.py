"""``autopar solve problem.json``."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from autopar.cli.flags import AS_JSON
from autopar.cli.output import console, working
from autopar.cli.values import print_json
from autopar.render.text import solution
from autopar.request.options import nbytes
from autopar.solver.problem import Assignment, Problem
from autopar.solver.problem_text import from_json
from autopar.solver.registry import SOLVERS
from autopar.utils.io import text_of


def command(
    problem: Annotated[Path, typer.Argument(help="A problem as JSON; see docs/solver.md.")],
    memory: Annotated[str | None, typer.Option(help="Limit on bytes, e.g. 40GiB.")] = None,
    solver: Annotated[
        str, typer.Option(help="elimination, ilp (OR-Tools) or brute-force (small problems).")
    ] = "elimination",
    ilp: Annotated[bool, typer.Option("--ilp", help="As --solver ilp.")] = False,
    as_json: AS_JSON = False,
) -> None:
    """Solve a problem that was written by hand or by `autopar plan --problem`."""
    asked = from_json(text_of(problem, "the problem"), str(problem))
    started = time.perf_counter()
    with working("solving"):
        found = SOLVERS.named("ilp" if ilp else solver)(asked, _limit(memory))
    took_s = time.perf_counter() - started
    if as_json:
        print_json(_content(asked, found, took_s))
    else:
        console().print(solution(asked, found, took_s))


def _limit(memory: str | None) -> float | None:
    """Bytes; None where there is no limit, as nothing is a device's here."""
    limit = nbytes(memory)
    return None if limit == math.inf else limit


def _content(problem: Problem, found: Assignment, took_s: float) -> dict[str, Any]:
    """The answer for programs: the state of each variable by its name."""
    states = {v.name: s for v, s in zip(problem.variables, found.states, strict=True)}
    return vars(found) | {"states": states, "took_s": took_s}
