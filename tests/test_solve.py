"""Elimination and the memory limit against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.errors import InfeasibleError, PlanError
from autopar.problem import Factor, Problem, Variable, brute_force
from autopar.solve import eliminate, within


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Up to six variables, tables over one to three of them, some entries forbidden."""
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    variables = tuple(
        Variable(f"v{i}", rng.integers(0, 9, n) / 4, rng.integers(0, 9, n) * 1.0)
        for i, n in enumerate(sizes)
    )
    factors = []
    for _ in range(draw(st.integers(0, 7))):
        width = min(len(sizes), draw(st.integers(1, 3)))
        scope = tuple(int(i) for i in rng.permutation(len(sizes))[:width])
        table = rng.integers(0, 9, [sizes[i] for i in scope]) / 2
        nbytes = rng.integers(0, 4, table.shape) * 1.0 if rng.random() < 0.5 else None
        factors.append(
            Factor(scope, np.where(rng.random(table.shape) < 0.1, np.inf, table), nbytes)
        )
    return Problem(variables, tuple(factors))


@settings(max_examples=500, deadline=None)
@given(problems())
def test_elimination_equals_brute_force(problem: Problem) -> None:
    problem.check()
    expected = brute_force(problem)
    if expected is None:
        with pytest.raises(InfeasibleError):
            eliminate(problem)
        return
    found = eliminate(problem)
    assert found.seconds == pytest.approx(expected.seconds)
    assert found.bound_s == pytest.approx(expected.seconds)


@settings(max_examples=200, deadline=None)
@given(problems(), st.floats(0, 1))
def test_a_limit_is_kept_and_the_bound_is_true(problem: Problem, share: float) -> None:
    limit = share * sum(float(v.nbytes.max()) for v in problem.variables)
    expected = brute_force(problem, limit)
    try:
        found = within(problem, limit)
    except InfeasibleError:
        return
    assert expected is not None
    assert found.nbytes <= limit
    assert found.bound_s <= expected.seconds + 1e-9
    assert found.seconds >= expected.seconds - 1e-9


def test_a_limit_that_nothing_meets_names_the_smallest() -> None:
    only = Variable("v", np.array([1.0]), np.array([3.0 * 2**30]))
    with pytest.raises(InfeasibleError, match="smallest needs 3 GiB"):
        within(Problem((only,), ()), 2.0**30)


@given(problems())
@settings(max_examples=50, deadline=None)
def test_text_round_trip(problem: Problem) -> None:
    again = Problem.from_json(problem.to_json())
    states = (0,) * len(problem.variables)
    assert again.seconds(states) == problem.seconds(states)
    assert again.to_json() == problem.to_json()


@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"variables": [{"name": "a", "seconds": [1], "nbytes": []}], "factors": []}',
     '{"variables": [], "factors": [{"scope": [0], "seconds": [1]}]}'],
)  # fmt: skip
def test_malformed_problems_are_refused(text: str) -> None:
    with pytest.raises(PlanError):
        Problem.from_json(text)
