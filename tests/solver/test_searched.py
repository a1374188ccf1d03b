"""The search that helps where tables would grow too large: true bounds, allowed answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.solver import solve
from autopar.solver.brute_force import brute_force
from autopar.solver.problem import Factor, Problem, Variable
from autopar.solver.searched import searched
from tests.solver.test_solve import anything


@settings(max_examples=100, deadline=None)
@given(anything, st.one_of(st.none(), st.floats(0, 1)), st.sampled_from([0.0, 0.5, 1.0]))
def test_bounds_and_answers(problem: Problem, share: float | None, hidden: float) -> None:
    whole = sum(float(v.nbytes.max()) for v in problem.variables)
    limit = np.inf if share is None else share * whole
    expected = brute_force(problem, limit)
    found = searched(problem, limit, hidden)
    if found is None:
        return
    assert expected is not None
    assert found.seconds == pytest.approx(problem.seconds(found.states))
    assert found.nbytes <= limit * (1 + 1e-9)
    assert found.bound_s <= expected.seconds + 1e-9 <= found.seconds + 2e-9


def test_it_is_near_where_tables_may_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid of 8 x 8 decisions, for tables of at most 16 entries: neither is exact, both are near."""
    problem = grid(8)
    exact = solve(problem)
    assert exact.proof == "elimination"
    monkeypatch.setattr("autopar.solver.order.MAX_TABLE", 16)
    monkeypatch.setattr("autopar.solver.prepared.MOST_ENTRIES", 0)
    found = solve(problem)
    assert found.bound_s <= exact.seconds <= found.seconds <= 1.02 * exact.seconds
    monkeypatch.setattr("autopar.solver.prepared.searched", lambda *_: None)
    alone = solve(problem)
    assert found.seconds - found.bound_s < 0.5 * (alone.seconds - alone.bound_s)


def grid(side: int) -> Problem:
    """Decisions between three states, of which neighbours share random costs."""
    rng = np.random.default_rng(0)
    place = np.arange(side * side).reshape(side, side)
    pairs = [
        *zip(place[:, :-1].ravel(), place[:, 1:].ravel(), strict=True),
        *zip(place[:-1].ravel(), place[1:].ravel(), strict=True),
    ]
    return Problem(
        tuple(Variable(f"v{v}", rng.random(3), np.zeros(3)) for v in place.ravel()),
        tuple(Factor((int(a), int(b)), rng.random((3, 3))) for a, b in pairs),
    )
