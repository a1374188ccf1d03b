"""The integer program against brute force, and against elimination on real graphs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.errors import InfeasibleError
from autopar.solver import solve
from autopar.solver.brute_force import brute_force
from autopar.solver.ilp import solve_ilp
from autopar.solver.problem import Problem, Variable
from tests.solver.test_solve import anything


@pytest.mark.thorough
@settings(max_examples=100)
@given(anything, st.one_of(st.none(), st.floats(0, 1)))
def test_equals_brute_force(problem: Problem, share: float | None) -> None:
    whole = sum(float(v.nbytes.max()) for v in problem.variables)
    limit = None if share is None else share * whole
    expected = brute_force(problem, np.inf if limit is None else limit)
    if expected is None:
        with pytest.raises(InfeasibleError):
            solve_ilp(problem, limit)
        return
    found = solve_ilp(problem, limit)
    assert found.proof in ("lp", "branch")
    assert found.seconds == pytest.approx(expected.seconds, rel=1e-6)
    assert found.bound_s <= expected.seconds * (1 + 1e-6) + 1e-9
    assert found.bound_s == pytest.approx(expected.seconds, rel=1e-4, abs=1e-5)
    assert solve(problem, limit).seconds == pytest.approx(found.seconds, rel=1e-6)


def test_limits_are_met_to_the_byte() -> None:
    """Three billion bytes and one byte less are the same within the solver's tolerance."""
    large = Variable("v", np.array([1.0, 2.0]), np.array([3e9, 3e9 - 1]))
    found = solve_ilp(Problem((large,), ()), 3e9 - 1)
    assert found.states == (1,) and found.bound_s <= 2.0 == found.seconds
    with pytest.raises(InfeasibleError):
        solve_ilp(Problem((large,), ()), 3e9 - 2)
