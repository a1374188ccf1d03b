"""What docs/solver.md calculates by hand is what the solvers find."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autopar.solver import best_with_each_state, solve
from autopar.solver.brute_force import brute_force
from autopar.solver.ilp import solve_ilp
from autopar.solver.problem_text import from_json

PAGE = (Path(__file__).parent.parent.parent / "docs" / "solver.md").read_text()


def test_the_worked_example() -> None:
    written = re.search(r"```json.*?\n(.*?)```", PAGE, re.DOTALL)
    stated = re.search(r"The optimum is (\d+) seconds", PAGE)
    assert written and stated
    problem = from_json(written[1])
    best = float(stated[1])
    for found in (solve(problem), solve_ilp(problem), brute_force(problem)):
        assert found is not None
        assert found.seconds == pytest.approx(best) == pytest.approx(found.bound_s)
        assert found.states == (1, 1, 0)
    assert best_with_each_state(problem, 1) == pytest.approx((9.0, 6.0))
