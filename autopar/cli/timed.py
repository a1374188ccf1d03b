"""`autopar solve FILE --seconds N`: the anytime method, for problems with bytes over time."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from autopar.cli.output import console, save, working
from autopar.cli.values import print_json
from autopar.errors import InputError, PlanError
from autopar.render.text.timed import timed_solution
from autopar.solver.problem import Limits
from autopar.solver.problem_text import from_json

SECONDS = 60.0
"""For a problem of the contest, if none are given."""


@dataclass(frozen=True)
class Wanted:
    """How long to search: seconds from `started`, perhaps rounds; which seed, how many processes."""

    started: float
    seconds: float | None
    seed: int
    rounds: int | None
    processes: int

    def check(self, has_solver: bool) -> None:
        """Raise `InputError` where another solver is named."""
        if has_solver:
            raise InputError("--solver and --ilp are without --seconds. Leave them out.")


def is_contest(content: object) -> bool:
    """Whether parsed JSON looks like a problem of the contest."""
    return isinstance(content, dict) and isinstance(content.get("problem"), dict)


def save_states(states: object, path: Path) -> None:
    """Write an assignment: a list, or states by the names of variables."""
    save(json.dumps({"states": states}) + "\n", path)


def solve_timed(
    text: str,
    content: object,
    source: Path,
    limits: Limits,
    wanted: Wanted,
    output: Path | None,
    as_json: bool,
) -> None:
    """Solve a problem of the contest, or one of ours, in the time that is wanted; print it."""
    # numba takes a second to load: not for every command.
    from autopar.solver.anytime.anytime import solve_anytime
    from autopar.solver.anytime.contest_format import timed_problem
    from autopar.solver.anytime.from_problem import from_problem

    if is_contest(content):
        if limits is not None:
            raise InputError("A problem of the contest has its own limit. Leave --memory out.")
        problem, names = timed_problem(content, str(source)), None
    else:
        asked = from_json(text, str(source))
        try:
            problem = from_problem(asked, limits)
        except PlanError as error:
            raise PlanError(f"{source}: {error}") from None
        names = [variable.name for variable in asked.variables]
    seconds = SECONDS if wanted.seconds is None else wanted.seconds
    left_s = seconds - (time.perf_counter() - wanted.started)
    with working("solving"):
        found = solve_anytime(problem, left_s, wanted.seed, wanted.rounds, wanted.processes)
    took_s = time.perf_counter() - wanted.started
    states = list(found.states[: None if names is None else len(names)])
    if output is not None:
        save_states(states if names is None else dict(zip(names, states, strict=True)), output)
    if as_json:
        print_json(
            {
                "cost": found.cost,
                "bound": found.bound,
                "gap": found.gap,
                "states": states,
                "method": "lagrange",
                "seed": wanted.seed,
                "work": asdict(found.work),
                "left": found.left,
                "took_s": took_s,
            }
        )
    else:
        console().print(timed_solution(problem, found, wanted.seed, took_s))
