"""What planning does not look for: plans that could hardly be better than one that is there."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import autopar
from autopar.ir.mesh import Mesh
from autopar.plans.plan import Plan
from autopar.sharding.in_flight import COARSE, MANY, InFlightPlanner, Searched
from autopar.sharding.limited import WarmStart
from autopar.sharding.sharding_problem import Settings, pose
from autopar.solver.gap_tolerance import FAIR, GapTolerance
from autopar.solver.prepared import PreparedProblem, solve
from cost_models.hardware import load
from tests import parity

SHARE = 0.8
"""Of the memory of the best plan without a limit."""


class Searches(InFlightPlanner):
    """Plans of so many seconds, by microbatches in flight."""

    def __init__(self, plan: Plan, seconds: dict[int, float]) -> None:
        self._plan, self._seconds = plan, seconds
        self._searched: dict[int, Searched] = {}

    def _search(self, in_flight: int, limit: float) -> Searched:
        if in_flight not in self._searched:
            seconds = self._seconds[in_flight]
            plan = replace(self._plan, objective_s=seconds, bound_s=seconds)
            known: Any = WarmStart(None)  # type: ignore[arg-type]
            self._searched[in_flight] = Searched(plan, known)
        return self._searched[in_flight]

    def planned(self, *in_flight: int) -> list[int]:
        """Which were searched for, in turn."""
        for many in in_flight:
            self._limited(many, math.inf)
        return list(self._searched)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return autopar.plan(nn.Linear(8, 8), (2,), {"input": torch.zeros(8, 8)}, loss=torch.sum)


def test_a_plan_for_more_in_flight_serves_where_fewer_gain_little(plan: Plan) -> None:
    little = {8: 1.0 + FAIR.wide / 2, 4: 1.0, 2: 1.0, 1: 1.0}
    assert Searches(plan, little).planned(8, 4, 2) == [8, 1]
    much = {8: 1.0 + 2 * FAIR.wide, 4: 1.0, 2: 1.0, 1: 1.0}
    assert Searches(plan, much).planned(8, 4) == [8, 1, 4]


def test_after_some_searches_fewer_have_to_gain_more(plan: Plan) -> None:
    seconds = {16: 1.0 + COARSE / 2, 8: 1.0 + COARSE / 2, 4: 1.0, 2: 1.0, 1: 1.0}
    searched = Searches(plan, seconds).planned(16, 8, 4, 2)
    assert len(searched) == MANY and searched == [16, 1, 8]
    steep = {16: 1.0 + 2 * COARSE, 8: 1.0 + 2 * COARSE, 4: 1.0, 2: 1.0, 1: 1.0}
    assert Searches(plan, steep).planned(16, 8, 4) == [16, 1, 8, 4]


def test_gaps_that_are_far_are_left_to_branching() -> None:
    """Pareto sets close small ones; what they would take for larger ones is saved."""
    case = parity.reference("mlp")
    posed = pose(case.graph, Mesh.of(2), load("cpu"), Settings(), case.saved)
    problem = posed.priced.problem
    limit = SHARE * solve(problem).nbytes
    near = PreparedProblem.of(problem).solve(
        limit, branches=False, care=GapTolerance(0.0, 0.0, math.inf)
    )
    far = PreparedProblem.of(problem).solve(
        limit, branches=False, care=GapTolerance(0.0, 0.0, FAIR.far)
    )
    assert near.proof == "pareto" and far.proof != "pareto"
    assert 1.0 - far.bound_s / far.seconds > FAIR.far > 1.0 - near.bound_s / near.seconds
