"""The command ``autopar solve problem.json``: solves a problem or a pipeline workload."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from autopar.cli.flags import AS_JSON
from autopar.cli.output import console, working
from autopar.cli.values import print_json
from autopar.errors import InputError, PlanError
from autopar.pipeline.planner.read import read_workload
from autopar.pipeline.planner.throughput import ThroughputPlan, least_load
from autopar.render.text import solution
from autopar.render.text.loaded import loaded
from autopar.request.options import nbytes
from autopar.solver.problem import Assignment, Problem
from autopar.solver.problem_text import from_json
from autopar.solver.registry import SOLVERS
from autopar.utils.io import text_of


def command(
    problem: Annotated[
        Path,
        typer.Argument(
            help="A problem as JSON (docs/solver.md), or the costs of a pipeline's layers, in "
            "the format of autopar, Piper or dnn-partitioning."
        ),
    ],
    memory: Annotated[str | None, typer.Option(help="Limit on bytes, e.g. 40GiB.")] = None,
    solver: Annotated[
        str, typer.Option(help="elimination, ilp (OR-Tools) or brute-force (small problems).")
    ] = "elimination",
    ilp: Annotated[bool, typer.Option("--ilp", help="Same as --solver ilp.")] = False,
    as_json: AS_JSON = False,
) -> None:
    """Solve a problem that was written by hand or by `autopar plan --problem`.

    Of a pipeline's layers it finds the stages whose slowest is fastest, for a pipeline that is full.
    """
    text = text_of(problem, "the problem")
    content = _parsed(text)
    started = time.perf_counter()
    try:
        workload = read_workload(text, content)
    except PlanError as error:
        raise PlanError(f"{problem}: {error}") from None
    if workload is not None:
        _refuse_flags(memory, solver, ilp)
        with working("solving"):
            plan = least_load(workload)
        _show(plan, loaded(workload, plan, time.perf_counter() - started), as_json)
        return
    asked = from_json(text, str(problem))
    with working("solving"):
        found = SOLVERS.named("ilp" if ilp else solver)(asked, _limit(memory))
    took_s = time.perf_counter() - started
    if as_json:
        print_json(_content(asked, found, took_s))
    else:
        console().print(solution(asked, found, took_s))


def _parsed(text: str) -> object:
    """Return the JSON content, or None if it is invalid; the problem's own reader reports that."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _refuse_flags(memory: str | None, solver: str, ilp: bool) -> None:
    """Raise `InputError` for flags of problems: a workload has its own limits and algorithm."""
    if memory is not None or ilp or solver != "elimination":
        raise InputError(
            "--memory, --solver and --ilp are for problems; a file of a pipeline's layers has the "
            "memory of its pools. Leave them out."
        )


def _show(plan: ThroughputPlan, shown: RenderableType, as_json: bool) -> None:
    if as_json:
        print_json(asdict(plan))
    else:
        console().print(shown)


def _limit(memory: str | None) -> float | None:
    """Return the limit in bytes; None for ``none``, too, because there is no device with a limit."""
    limit = nbytes(memory)
    return None if limit == math.inf else limit


def _content(problem: Problem, found: Assignment, took_s: float) -> dict[str, Any]:
    """Return the solution as JSON data, with the state of each variable by its name."""
    states = {v.name: s for v, s in zip(problem.variables, found.states, strict=True)}
    return vars(found) | {"states": states, "took_s": took_s}
