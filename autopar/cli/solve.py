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
from autopar.cli.output import console, working, writable
from autopar.cli.timed import Wanted, is_contest, save_states, solve_timed
from autopar.cli.values import print_json
from autopar.errors import InputError, PlanError
from autopar.pipeline.planner.read import read_workload
from autopar.pipeline.planner.throughput import ThroughputPlan, least_load
from autopar.pipeline.planner.workload import Workload
from autopar.render.text import solution
from autopar.render.text.loaded import loaded
from autopar.request.options import nbytes
from autopar.solver.problem import Assignment, Problem
from autopar.solver.problem_text import from_json
from autopar.solver.registry import solve_with
from autopar.utils.io import text_of


def command(
    problem: Annotated[
        Path,
        typer.Argument(
            help="A problem as JSON (docs/solver.md) or in the format of the ASPLOS 2025 contest, or "
            "the costs of a pipeline's layers, in the format of autopar, Piper or "
            "dnn-partitioning. A file may be compressed with gzip."
        ),
    ],
    memory: Annotated[str | None, typer.Option(help="Limit on bytes, e.g. 40GiB.")] = None,
    solver: Annotated[
        str, typer.Option(help="elimination, ilp (OR-Tools) or brute-force (small problems).")
    ] = "elimination",
    ilp: Annotated[bool, typer.Option("--ilp", help="Same as --solver ilp.")] = False,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Seconds to search, for large problems; default for the contest's problems: 60.",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="With --seconds: random seed of the search.")
    ] = 0,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --seconds: end after this number of rounds, to repeat a run."
        ),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, max=64, help="With --seconds: number of processes that search.")
    ] = 1,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", dir_okay=False, help="File to write the states to, as JSON."
        ),
    ] = None,
    as_json: AS_JSON = False,
) -> None:
    """Solve a problem that was written by hand or by `autopar plan --problem`.

    For a pipeline's layers it finds the stages of least load, as `autopar stages` does.
    """
    started = time.perf_counter()
    writable(output, reads=[problem])
    text = text_of(problem, "the problem")
    content = _parsed(text)
    if is_contest(content) or (seconds is not None and _workload(text, content, problem) is None):
        wanted = Wanted(started, seconds, seed, rounds, processes)
        wanted.check(ilp or solver != "elimination")
        solve_timed(text, content, problem, _limit(memory), wanted, output, as_json)
        return
    if seconds is None and (rounds is not None or seed or processes > 1):
        raise InputError("--seed, --rounds and --processes are for a search of --seconds.")
    workload = _workload(text, content, problem)
    if workload is not None:
        _refuse_flags(memory, solver, ilp, output, seconds)
        with working("solving"):
            plan = least_load(workload)
        _show(plan, loaded(workload, plan, time.perf_counter() - started), as_json)
        return
    asked = from_json(text, str(problem))
    with working("solving"):
        found = solve_with("ilp" if ilp else solver, asked, _limit(memory))
    took_s = time.perf_counter() - started
    if output is not None:
        save_states(_content(asked, found, took_s)["states"], output)
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


def _workload(text: str, content: object, problem: Path) -> Workload | None:
    """Return a pipeline's layers, if the file has them; raise `PlanError` that names the file."""
    try:
        return read_workload(text, content)
    except PlanError as error:
        raise PlanError(f"{problem}: {error}") from None


def _refuse_flags(
    memory: str | None, solver: str, ilp: bool, output: Path | None, seconds: float | None
) -> None:
    """Raise `InputError` for flags of problems: a workload has its own limits and algorithm."""
    is_plain = memory is None and output is None and seconds is None
    if not is_plain or ilp or solver != "elimination":
        raise InputError(
            "--memory, --solver, --ilp, --seconds and -o are for problems; a file of a pipeline's "
            "layers has the memory of its pools. Leave them out, or use `autopar stages`, which takes "
            "--seconds and -o."
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
