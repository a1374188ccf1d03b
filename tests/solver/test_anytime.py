"""The anytime method against brute force, on random problems with bytes over time."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.errors import AutoparError, InfeasibleError, PlanError
from autopar.solver.anytime import enumeration
from autopar.solver.anytime.anytime import Anytime, Solution, Work, solve_anytime
from autopar.solver.anytime.contest_format import timed_problem
from autopar.solver.anytime.from_problem import from_problem
from autopar.solver.anytime.timed_problem import Pair, Span, TimedProblem
from autopar.solver.anytime.times import reduced_times
from autopar.solver.brute_force import brute_force
from autopar.solver.problem import Array, Factor, Limit, Problem, Variable
from autopar.utils.compiled import compiled
from tests.cli.commands import run

SMALL = Path(__file__).parent / "contest_small.json"


def costs(rng: np.random.Generator, shape: tuple[int, ...], forbidden: float) -> Array:
    """Whole numbers, so that ties are common; some entries forbidden."""
    return np.where(rng.random(shape) < forbidden, np.inf, rng.integers(0, 9, shape) * 1.0)


@st.composite
def timed_problems(draw: st.DrawFn) -> TimedProblem:
    """Up to seven variables and ten times; some pairs are one-to-one, so that variables merge."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=7))
    times = draw(st.integers(0, 10))
    own = tuple(costs(rng, (size,), 0.05) for size in sizes)
    pairs = []
    for _ in range(draw(st.integers(0, 9)) if len(sizes) > 1 else 0):
        i, j = map(int, rng.permutation(len(sizes))[:2])
        table = costs(rng, (sizes[i], sizes[j]), 0.1)
        if rng.random() < 0.3:
            table = np.where(np.eye(sizes[i], sizes[j]) > 0, table, np.inf)
        pairs.append(Pair(i, j, table))
    spans = []
    for _ in range(draw(st.integers(0, 9)) if times else 0):
        i = int(rng.integers(len(sizes)))
        start, stop = sorted(map(int, rng.integers(0, times + 1, 2)))
        spans.append(Span(i, start, stop, rng.integers(0, 9, sizes[i]) * 1.0))
    limits = rng.integers(2, 18, times) * 1.0 if rng.random() < 0.5 else np.full(times, 12.0)
    return TimedProblem(own, tuple(pairs), tuple(spans), limits)


def least(problem: TimedProblem) -> float:
    """The optimum by enumeration, infinite where there is none."""
    every = itertools.product(*(range(len(own)) for own in problem.costs))
    return min((problem.cost(x) for x in every if problem.fits(x)), default=np.inf)


def check(problem: TimedProblem, found: Solution) -> None:
    """The answer is what it says, by the problem's own evaluation."""
    assert problem.fits(found.states)
    assert found.cost == problem.cost(found.states)
    assert found.bound <= found.cost


@contextlib.contextmanager
def enumerating(most: int) -> Iterator[None]:
    """Parts with so many assignments are enumerated; with none, bounds and branches have to do it."""
    with mock.patch.object(enumeration, "MOST", most):
        yield


def solved(problem: TimedProblem, seed: int = 0) -> Solution | None:
    try:
        return solve_anytime(problem, 600.0, seed, rounds=1000)
    except InfeasibleError:
        return None


@pytest.mark.thorough
@pytest.mark.parametrize("most", [enumeration.MOST, 8, 0])
@given(problem=timed_problems())
@settings(max_examples=100, deadline=None)
def test_equals_brute_force(most: int, problem: TimedProblem) -> None:
    problem.check()
    with enumerating(most):
        expected, found = least(problem), solved(problem)
    assert (found is None) == (expected == np.inf)
    if found is not None:
        check(problem, found)
        assert found.cost == pytest.approx(expected, abs=1e-6)
        assert found.bound == pytest.approx(expected, abs=1e-6)


@given(timed_problems())
@settings(max_examples=100, deadline=None)
def test_bounds_of_every_round_hold(problem: TimedProblem) -> None:
    expected = least(problem)
    bounds: list[float] = []
    with contextlib.suppress(InfeasibleError), enumerating(0):
        solve_anytime(problem, 60.0, rounds=8, watch=lambda run: bounds.append(run.bound))
    assert all(bound <= expected + 1e-6 for bound in bounds)


@given(timed_problems())
@settings(max_examples=200, deadline=None)
def test_times_that_are_dropped_do_not_matter(problem: TimedProblem) -> None:
    try:
        spans, limits, times = reduced_times(problem.spans, problem.limits)
    except InfeasibleError as error:
        assert least(problem) == np.inf
        assert "Raise the limit" in str(error)
        return
    smaller = replace(problem, spans=tuple(spans), limits=limits)
    assert len(times) == len(limits) <= len(problem.limits)
    for states in itertools.product(*(range(len(own)) for own in problem.costs)):
        assert smaller.fits(states) == problem.fits(states)


@st.composite
def summed(draw: st.DrawFn) -> tuple[Problem, list[Limit]]:
    """A `Problem` with factors over up to three variables, some with bytes, and up to two limits."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    variables = tuple(
        Variable(
            f"v{i}", costs(rng, (n,), 0.05), rng.integers(0, 9, n) * 1.0,
            kept=rng.integers(0, 4, n) * 1.0 if rng.random() < 0.5 else None,
        )
        for i, n in enumerate(sizes)
    )  # fmt: skip
    factors = []
    for _ in range(draw(st.integers(0, 4))):
        scope = tuple(map(int, rng.permutation(len(sizes))[: rng.integers(1, 4)]))
        shape = tuple(sizes[i] for i in scope)
        held = rng.integers(0, 4, shape) * 1.0 if rng.random() < 0.5 else None
        factors.append(Factor(scope, costs(rng, shape, 0.1), held))
    limits = [Limit(float(rng.integers(4, 30)), float(rng.integers(0, 3))) for _ in range(2)]
    return Problem(variables, tuple(factors)), limits[: draw(st.integers(0, 2))]


@given(summed())
@settings(max_examples=150, deadline=None)
def test_sums_and_several_limits_are_special_cases(given: tuple[Problem, list[Limit]]) -> None:
    problem, limits = given
    expected = brute_force(problem, limits)
    try:
        with enumerating(0):
            found = solved(from_problem(problem, limits))
    except InfeasibleError:
        found = None
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        states = found.states[: len(problem.variables)]
        assert problem.seconds(states) == pytest.approx(expected.seconds, abs=1e-6)
        assert all(problem.nbytes(states, each.in_flight) <= each.nbytes for each in limits)
        assert found.bound <= expected.seconds + 1e-6


def test_seconds_that_hide_are_refused() -> None:
    zeros = np.zeros(2)
    problem = Problem((Variable("a", zeros, zeros, np.array([1.0, -1.0])),), ())
    with pytest.raises(PlanError, match="uncovered"):
        from_problem(problem)


def chain(length: int, seed: int) -> TimedProblem:
    """A chain with skips, where cheap states need many bytes for a while."""
    rng = np.random.default_rng(seed)
    own = tuple(rng.integers(0, 100, 6) * 1.0 for _ in range(length))
    ends = [(i, i + 1) for i in range(length - 1)] + [(i, i + 5) for i in range(0, length - 5, 3)]
    pairs = tuple(Pair(i, j, rng.integers(0, 60, (6, 6)) * 1.0) for i, j in ends)
    spans = tuple(Span(i, i, i + 8, (100 - own[i]) * 1.0) for i in range(length))
    return TimedProblem(own, pairs, spans, np.full(length + 8, 450.0))


def test_equal_seeds_and_rounds_give_equal_answers() -> None:
    problem = chain(80, 0)
    first, second = (solve_anytime(problem, 60.0, seed=3, rounds=12) for _ in range(2))
    assert first == second
    check(problem, first)
    assert first.work.rounds <= 12


def test_equal_seeds_give_equal_answers_in_two_processes() -> None:
    problem = chain(80, 0)
    first, second = (solve_anytime(problem, 60.0, seed=3, rounds=6, processes=2) for _ in range(2))
    assert first == second
    check(problem, first)


def test_more_rounds_are_no_worse() -> None:
    problem = chain(80, 1)
    found = [solve_anytime(problem, 60.0, rounds=rounds) for rounds in (4, 10, 25)]
    for each in found:
        check(problem, each)
    assert found[0].cost >= found[1].cost >= found[2].cost
    assert found[0].bound <= found[1].bound <= found[2].bound
    assert found[2].gap < found[0].gap


def test_a_limit_that_all_exceed_is_named() -> None:
    problem = chain(10, 0)
    with pytest.raises(InfeasibleError, match=r"At time 0 the least .* more than the limit of 1"):
        solve_anytime(replace(problem, limits=np.ones(18)), 1.0)


def test_states_that_fit_no_other_are_named() -> None:
    own = (np.zeros(2), np.zeros(2))
    problem = TimedProblem(own, (Pair(0, 1, np.full((2, 2), np.inf)),), (), np.zeros(0))
    with pytest.raises(InfeasibleError, match="No state of variable 0"):
        solve_anytime(problem, 1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"costs": (np.zeros(0), np.zeros(2))}, "Variable 0 needs a list of costs"),
        (
            {"costs": (np.array([np.nan]), np.zeros(2))},
            "Variable 0 has a cost that is not a number",
        ),
        ({"costs": (np.array([1e18]), np.zeros(2))}, "Variable 0 has a cost beyond 1e"),
        ({"pairs": (Pair(0, 2, np.zeros((1, 2))),)}, "a variable that does not exist"),
        ({"pairs": (Pair(1, 1, np.zeros((2, 2))),)}, "names a variable twice"),
        ({"pairs": (Pair(0, 1, np.zeros((2, 2))),)}, r"a table \(2, 2\), not \(1, 2\)"),
        ({"spans": (Span(2, 0, 1, np.zeros(2)),)}, "the variable does not exist"),
        ({"spans": (Span(1, 0, 4, np.zeros(2)),)}, "is from 0 to 4, not within 0 to 3"),
        ({"spans": (Span(1, 0, 1, np.zeros(3)),)}, "one number of bytes per state"),
        ({"spans": (Span(1, 0, 1, np.array([0.0, -1.0])),)}, "bytes that are negative"),
        ({"limits": np.array([np.nan])}, "A limit is not a number"),
    ],
)
def test_check_says_what_is_wrong(change: dict[str, Any], message: str) -> None:
    fine = TimedProblem((np.zeros(1), np.zeros(2)), (), (), np.zeros(3))
    fine.check()
    with pytest.raises(PlanError, match=message):
        replace(fine, **change).check()


def test_the_contest_format_is_read() -> None:
    problem = timed_problem(json.loads(SMALL.read_text()), "small")
    found = solve_anytime(problem, 60.0, rounds=60)
    check(problem, found)
    assert found.cost == least(problem) == found.bound
    assert problem.cost((0, 2, 0, 0, 0)) == np.inf
    assert list(problem.nbytes((1, 1, 1, 1, 0))) == [6, 10, 15, 17, 13, 8]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("problem",), [], r"problem is not an object"),
        (("problem", "nodes"), None, r"problem\.nodes is not an object"),
        (("problem", "usage_limit"), "1", r"problem\.usage_limit is not a number"),
        (("problem", "nodes", "costs", 1), "x", r"nodes\.costs\[1\] is not a list of numbers"),
        (("problem", "nodes", "costs", 1), [], r"nodes\.costs\[1\] is empty"),
        (("problem", "nodes", "costs", 1), [[1]], r"nodes\.costs\[1\] is not a list of numbers"),
        (("problem", "nodes", "usages", 2), [1], r"usages\[2\] has 1 values, not 2"),
        (("problem", "nodes", "usages", 2), [1, -2], r"usages\[2\] has a negative value"),
        (("problem", "nodes", "usages"), [[1]], r"5 costs, 1 usages and 5 intervals"),
        (("problem", "nodes", "intervals", 0), [3, 1], r"intervals\[0\] is \[3, 1\]"),
        (("problem", "nodes", "intervals", 0), [3], r"intervals\[0\] is not a pair"),
        (("problem", "usage_limit"), 10**400, r"usage_limit is too large"),
        (("problem", "nodes", "costs", 1), [10**400, 1], r"costs\[1\] is not a list of numbers"),
        (("problem", "nodes", "intervals", 0), [0, 10**15], r"intervals\[0\] is \[0, 10000000"),
        (("problem", "nodes", "intervals", 0), [0, 10**400], r"intervals\[0\] is \[0, 1000000"),
        (("problem", "edges", "nodes", 0), [0, 9], r"edges\.nodes\[0\] is \[0, 9\]"),
        (("problem", "edges", "nodes", 0), [0, 0], r"edges\.nodes\[0\] is \[0, 0\]"),
        (("problem", "edges", "nodes", 0), [0, 1.5], r"edges\.nodes\[0\] is not a pair"),
        (("problem", "edges", "costs", 3), [1], r"edges\.costs\[3\] has 1 values, not 2 x 2"),
        (("problem", "edges", "costs"), [[1]], r"5 nodes, but 1 costs"),
    ],
)
def test_bad_files_are_refused_by_place(path: tuple[Any, ...], value: object, message: str) -> None:
    content = json.loads(SMALL.read_text())
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(PlanError, match=message):
        timed_problem(content, "small")


def test_the_command_solves_and_writes(tmp_path: Path) -> None:
    packed = tmp_path / "small.json.gz"
    packed.write_bytes(gzip.compress(SMALL.read_bytes()))
    states = tmp_path / "states.json"
    printed = json.loads(
        run("solve", packed, "--seconds", 60, "--rounds", 60, "--json", "-o", states).stdout
    )
    problem = timed_problem(json.loads(SMALL.read_text()), "small")
    assert json.loads(states.read_text())["states"] == printed["states"]
    assert printed["cost"] == printed["bound"] == problem.cost(printed["states"])
    assert printed["gap"] == 0


def test_the_command_refuses_what_it_cannot_do() -> None:
    """A time that is no number would never be over."""
    assert run("solve", SMALL, "--seconds", "nan").exit_code == 2
    assert "--solver" in run("solve", SMALL, "--seconds", 1, "--ilp").output


def test_a_cost_of_zero_has_a_gap() -> None:
    work = Work(1, 1, 1, 1)
    assert Solution((0,), 0.0, -1.0, work, (1, 1)).gap == np.inf
    assert Solution((0,), 0.0, 0.0, work, (1, 1)).gap == 0.0
    assert Solution((0,), -4.0, -5.0, work, (1, 1)).gap == 0.25


def test_a_process_that_dies_ends_the_search_with_a_message() -> None:
    run = Anytime(chain(80, 0), processes=3)
    try:
        run.round()
        victim = run._helpers._processes[0]
        victim.kill()
        victim.join()
        with pytest.raises(AutoparError, match="A process that searches has ended"):
            run.round()
    finally:
        run.close()


@pytest.mark.slow
def test_no_process_outlives_the_first() -> None:
    """Killed, it closes nothing by itself."""
    script = """
import os, signal
from tests.solver.test_anytime import Anytime, chain
run = Anytime(chain(80, 0), processes=3)
print(*[process.pid for process in run._helpers._processes], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    pids = list(map(int, done.stdout.split()))
    assert len(pids) == 2, done.stderr
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "a process is left"
        time.sleep(0.1)


def test_without_a_place_for_its_cache_numba_compiles_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    njit, asked = numba.njit, []

    def no_place(*functions: Any, **options: Any) -> Any:
        if functions:  # numba compiles its own
            return njit(*functions, **options)
        asked.append(options)
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return njit(**options)

    monkeypatch.setattr(numba, "njit", no_place)
    assert compiled(lambda x: x + 1)(1) == 2
    assert [each.get("cache") for each in asked] == [True, None]
