"""``autopar solve problem.json``."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from autopar.cli.output import console
from autopar.errors import PlanError
from autopar.options import nbytes
from autopar.problem import Assignment, Problem
from autopar.problem_text import from_json
from autopar.show import solution
from autopar.solve import solve


def command(
    problem: Annotated[Path, typer.Argument(help="A problem as JSON; see docs/solver.md.")],
    memory: Annotated[str | None, typer.Option(help="Limit on bytes, e.g. 40GiB.")] = None,
    ilp: Annotated[bool, typer.Option("--ilp", help="By integer programming instead.")] = False,
) -> None:
    """Solve a problem that was written by hand or by `autopar plan --problem`."""
    try:
        text = problem.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"Cannot read {problem}: {error}.") from None
    asked = from_json(text)
    started = time.perf_counter()
    found = (_program() if ilp else solve)(asked, nbytes(memory))
    took_s = time.perf_counter() - started
    console().print(solution(asked, found, took_s))


def _program() -> Callable[[Problem, float | None], Assignment]:
    # OR-Tools' modelling layer takes a quarter of a second to load: not for every command.
    from autopar.solve.ilp import solve_ilp

    return solve_ilp
