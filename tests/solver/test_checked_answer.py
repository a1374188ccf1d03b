"""The answers of solvers are checked against the problem alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.errors import InfeasibleError, InputError, PlanError
from autopar.solver.problem import Assignment, Factor, Limit, Limits, Problem, Variable
from autopar.solver.registry import SOLVERS, solve_with
from tests.solver.test_solve import problems

APART = Factor((0, 1), np.array([[0.0, np.inf], [5.0, 0.0]]))
PROBLEM = Problem(
    tuple(Variable(n, np.array([2.0, 1.0]), np.array([8.0, 4.0])) for n in "ab"), (APART,)
)
RIGHT = Assignment((1, 1), 2.0, 8.0, 2.0, "none")
WRONG: dict[str, tuple[Any, str]] = {
    "nothing": (None, "it is a NoneType, not an Assignment"),
    "few": (replace(RIGHT, states=(1,)), "it needs a tuple of 2 states, one per variable, not"),
    "list": (replace(RIGHT, states=[1, 1]), "it needs a tuple of 2 states"),
    "beyond": (replace(RIGHT, states=(1, 7)), "'b' has the states 0 to 1, not 7"),
    "below": (replace(RIGHT, states=(-1, 1)), "'a' has the states 0 to 1, not -1"),
    "float": (replace(RIGHT, states=(1.0, 1)), "'a' has the states 0 to 1, not 1.0"),
    "forbidden": (replace(RIGHT, states=(0, 1), seconds=np.inf), "forbidden together"),
    "cheap": (replace(RIGHT, seconds=0.5), "its states cost 2 s, not 0.5 s"),
    "small": (replace(RIGHT, nbytes=1.0), "its states take 8 bytes, not 1"),
    "bound": (replace(RIGHT, bound_s=2.5), "its lower bound, 2.5 s, is above its cost, 2 s"),
    "a little cheap": (replace(RIGHT, seconds=2.0 - 1e-8), "its states cost 2 s, not 1.99999999 s"),
    "cost": (replace(RIGHT, seconds=float("nan")), "its states cost 2 s, not nan s"),
}


def answering(monkeypatch: pytest.MonkeyPatch, found: Any) -> Callable[[Limits], Assignment]:
    monkeypatch.setattr(SOLVERS, "_known", dict(SOLVERS))
    SOLVERS.add("mine", lambda problem, limits=None: found)
    return lambda limits: solve_with("mine", PROBLEM, limits)


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_answer_is_refused(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    found, said = WRONG[kind]
    with pytest.raises(PlanError) as error:
        answering(monkeypatch, found)(None)
    assert "The answer of the solver 'mine' is wrong: " in str(error.value)
    assert said in str(error.value)


def test_an_answer_above_a_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    solved = answering(monkeypatch, RIGHT)
    assert solved(None) is solved(8.0) is RIGHT
    with pytest.raises(PlanError, match="it takes 8 bytes; the limit is 7"):
        solved(7.0)
    with pytest.raises(PlanError, match="it takes 8 bytes at time 0; the limit is 7"):
        solved(Limit(7.0, time=0))


def test_nanoseconds_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs of real graphs are microseconds: what is off by one in ten is not rounding."""
    variable = Variable("a", np.array([1e-8, 2e-8]), np.zeros(2))
    problem = Problem((variable,), ())
    for wrong in ({"seconds": 0.9e-8, "bound_s": 0.0}, {"bound_s": 1.1e-8}):
        given = replace(Assignment((0,), 1e-8, 0.0, 1e-8, "none"), **wrong)  # type: ignore[arg-type]
        monkeypatch.setattr(SOLVERS, "_known", {"mine": lambda *_, given=given: given})
        with pytest.raises(PlanError, match="is wrong: its"):
            solve_with("mine", problem)


def test_a_solver_is_a_function() -> None:
    with pytest.raises(InputError, match="The solver 'mine' has to be a function of"):
        SOLVERS.add("mine", 3)  # type: ignore[arg-type]


@given(problem=problems(), share=st.sampled_from([None, 0.5, 1.0]))
@settings(max_examples=60, deadline=None)
def test_answers_of_autopars_solvers_are_right(problem: Problem, share: float | None) -> None:
    largest = sum(float(v.nbytes.max()) for v in problem.variables)
    limit = None if share is None else share * largest
    costs = set()
    for name in SOLVERS:
        try:
            costs.add(round(solve_with(name, problem, limit).seconds, 6))
        except InfeasibleError:
            costs.add(np.inf)
    assert len(costs) == 1 or (limit is not None and np.inf not in costs)
