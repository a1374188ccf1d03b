"""Bytes with an interval and limits at times, against brute force on random problems."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.errors import InfeasibleError, OverLimitError, PlanError
from autopar.solver import solve
from autopar.solver.anytime.from_problem import from_problem
from autopar.solver.brute_force import brute_force
from autopar.solver.gap_tolerance import THOROUGH
from autopar.solver.ilp import solve_ilp
from autopar.solver.over_time import OverTime, fullest
from autopar.solver.problem import (
    Array,
    Assignment,
    Factor,
    Limit,
    Problem,
    TimedBytes,
    Variable,
)
from autopar.solver.problem_text import from_json, to_json
from tests.solver.test_solve import table

FEW = 4096
"""Assignments that a problem may have."""


def timed(rng: np.random.Generator, shape: tuple[int, ...], times: int) -> tuple[TimedBytes, ...]:
    """Up to three tables of bytes, some over no time at all, some at the same times."""
    ends = (sorted(rng.integers(0, times + 1, 2).tolist()) for _ in range(rng.integers(0, 4)))
    return tuple(TimedBytes(*each, rng.integers(0, 6, shape) * 1.0) for each in ends)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Up to six variables; bytes of variables and tables over time, at rest, and kept."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes, times = (
        draw(st.lists(st.integers(1, 4), min_size=1, max_size=6)),
        draw(st.integers(1, 8)),
    )
    hides = rng.random() < 0.3

    def maybe(shape: tuple[int, ...], chance: float) -> Array | None:
        return rng.integers(0, 4, shape) * 1.0 if rng.random() < chance else None

    variables = tuple(
        Variable(
            f"v{i}", table(rng, (n,), 0.05), rng.integers(0, 5, n) * 1.0,
            rng.integers(-8, 9, n) / 4 if hides else None, maybe((n,), 0.5),
            timed(rng, (n,), times) if rng.random() < 0.7 else None,
        )
        for i, n in enumerate(sizes)
    )  # fmt: skip
    factors = []
    for _ in range(draw(st.integers(0, 7))):
        width = min(len(sizes), draw(st.integers(1, 3)))
        scope = tuple(int(i) for i in rng.permutation(len(sizes))[:width])
        shape = tuple(sizes[i] for i in scope)
        uses = timed(rng, shape, times) if rng.random() < 0.7 else None
        costs = table(rng, shape, 0.1)
        factors.append(Factor(scope, costs, maybe(shape, 0.3), None, maybe(shape, 0.3), uses))
    return Problem(variables, tuple(factors))


def every(problem: Problem) -> list[tuple[int, ...]]:
    """All assignments that are not forbidden."""
    sizes = [variable.size for variable in problem.variables]
    found = itertools.islice(itertools.product(*map(range, sizes)), FEW)
    return [states for states in found if np.isfinite(problem.seconds(states))]


def check_near(found: Assignment, optimum: Assignment) -> None:
    assert found.bound_s <= optimum.seconds + 1e-9 <= found.seconds + 2e-9
    assert found.seconds <= optimum.seconds * (1 + THOROUGH.close) + 1e-9
    assert found.bound_s >= optimum.seconds * (1 - THOROUGH.close) - 1e-9


def check_within_a_limit(problem: Problem, share: float, in_flight: int) -> None:
    """The same optimum as brute force with a limit at every time; or a proof that there is none."""
    peaks = [problem.course(states, in_flight).max(initial=0.0) for states in every(problem)]
    if not peaks or not problem.times:
        return
    most = min(peaks) - 1 + share * (max(peaks) - min(peaks) + 1)
    optimum = brute_force(problem, [Limit(most, in_flight, t) for t in range(problem.times)])
    at_most = np.full(problem.times, most)
    try:
        found = OverTime(problem, in_flight).solve(at_most)
    except OverLimitError as error:
        assert optimum is None
        assert most < error.least_nbytes <= min(peaks) + 1e-6
        return
    except InfeasibleError:
        assert optimum is None
        return
    assert optimum is not None
    assert np.all(problem.course(found.states, in_flight) <= at_most)
    check_near(found, optimum)
    assert OverTime(problem, in_flight).bound_s(at_most) <= optimum.seconds + 1e-9


@settings(max_examples=150)
@given(problems(), st.floats(0, 1), st.integers(0, 2))
def test_a_limit_at_every_time(problem: Problem, share: float, in_flight: int) -> None:
    check_within_a_limit(problem, share, in_flight)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(max_examples=5000)
@given(problems(), st.floats(0, 1), st.integers(0, 2))
def test_thousands_with_a_limit_at_every_time(
    problem: Problem, share: float, in_flight: int
) -> None:
    check_within_a_limit(problem, share, in_flight)


@settings(max_examples=80)
@given(problems(), st.lists(st.floats(0.3, 1), min_size=8, max_size=8))
def test_a_limit_of_its_own_at_each_time(problem: Problem, shares: list[float]) -> None:
    """Elimination and the integer program agree with brute force."""
    some = every(problem)
    if not some or not problem.times:
        return
    peak = max(problem.course(states).max() for states in some)
    limits = [Limit(share * peak, 0, time) for time, share in enumerate(shares)]
    optimum = brute_force(problem, limits)
    for solver in (solve, solve_ilp):
        try:
            found = solver(problem, limits)
        except InfeasibleError:
            assert optimum is None
            continue
        assert optimum is not None
        for limit in limits:
            assert problem.load(found.states, limit.load) <= limit.nbytes
        assert found.seconds <= optimum.seconds * (1 + THOROUGH.close) + 1e-9
        assert found.bound_s <= optimum.seconds + 1e-9


@settings(max_examples=60)
@given(problems(), st.integers(0, 2))
def test_a_limit_counts_what_the_course_says(problem: Problem, in_flight: int) -> None:
    for states in every(problem)[:20]:
        course = problem.course(states, in_flight)
        for time, nbytes in enumerate(course):
            assert problem.load(states, Limit(0.0, in_flight, time).load) == nbytes
            kept = in_flight * (problem.nbytes(states, 1) - problem.nbytes(states, 0))
            assert sum(n for _, n in problem.in_use(states, time)) + kept == nbytes


@settings(max_examples=60)
@given(problems(), st.floats(0, 20))
def test_as_a_problem_of_the_anytime_method(problem: Problem, most: float) -> None:
    """Each limit holds at a time of its own, of the same bytes."""
    alone = Problem(tuple(replace(v, uncovered=None) for v in problem.variables), ())
    limits = [Limit(most, 1, time) for time in range(alone.times)]
    other = from_problem(alone, limits)
    for states in every(alone)[:20]:
        assert other.cost(states) == alone.seconds(states)
        fits = all(alone.load(states, limit.load) <= limit.nbytes for limit in limits)
        assert other.fits(states) == fits


@given(problems())
@settings(max_examples=30)
def test_text_round_trip(problem: Problem) -> None:
    again = from_json(to_json(problem))
    assert to_json(again) == to_json(problem)
    for states in every(problem)[:3]:
        assert np.array_equal(again.course(states), problem.course(states))


def test_bytes_that_are_never_in_use_together_need_not_fit_together() -> None:
    early = Variable("early", np.array([1.0, 5.0]), np.zeros(2), timed=(
        TimedBytes(0, 1, np.array([8.0, 2.0])),))  # fmt: skip
    late = Variable("late", np.array([1.0, 5.0]), np.zeros(2), timed=(
        TimedBytes(1, 2, np.array([8.0, 2.0])),))  # fmt: skip
    apart = Problem((early, late), ())
    assert OverTime(apart).solve(np.full(2, 8.0)).seconds == 2.0
    assert OverTime(apart).solve(np.array([8.0, 4.0])).seconds == 6.0
    with pytest.raises(OverLimitError) as refused:
        OverTime(apart).solve(np.full(2, 1.0))
    assert refused.value.least_nbytes == pytest.approx(2.0)


def test_only_times_that_matter_are_posed() -> None:
    rng = np.random.default_rng(0)
    variables = tuple(
        Variable(f"v{i}", np.array([0.0, 1.0]), np.zeros(2), timed=(
            TimedBytes(i, i + 3, np.array([float(rng.integers(5, 9)), 1.0])),))
        for i in range(40)
    )  # fmt: skip
    problem = Problem(variables, ())
    course = problem.course((0,) * 40)
    over_time = OverTime(problem)
    found = over_time.solve(np.full(problem.times, course.max() - 1.0))
    assert 0 < len(over_time.times) < 8 < problem.times
    assert problem.course(found.states).max() < course.max()


def test_the_fullest_time_of_each_run() -> None:
    assert fullest(np.array([-1.0, 2.0, 3.0, 0.0, 1.0, -2.0, 9.0])) == [6, 2, 4]
    assert fullest(np.array([-1.0, 0.0])) == []


@pytest.mark.parametrize(
    ("timed", "words"),
    [
        (TimedBytes(0, 1, np.zeros(3)), "not \\(2,\\)"),
        (TimedBytes(0, 1, np.array([-1.0, 0.0])), "between 0 and"),
        (TimedBytes(2, 1, np.zeros(2)), "from 2 to 1"),
        (TimedBytes(-1, 1, np.zeros(2)), "from -1 to 1"),
        (TimedBytes(0, 2**30, np.zeros(2)), "times go from 0"),
    ],
)
def test_malformed_times_are_refused(timed: TimedBytes, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        Problem((Variable("a", np.zeros(2), np.zeros(2), timed=(timed,)),), ()).check()


def test_a_limit_before_the_first_time_is_refused() -> None:
    only = Problem((Variable("a", np.zeros(1), np.zeros(1)),), ())
    with pytest.raises(PlanError, match="counted from 0"):
        solve(only, [Limit(1.0, 0, -1)])
