"""Plans are stable: noise on every cost changes the plan's true cost little, and ties do not flip."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.capture import capture
from autopar.capture.saved import saved
from autopar.compile.outputs import with_outputs
from autopar.errors import InfeasibleError
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.plans.plan import Plan
from autopar.sharding.sharding_problem import Settings, ShardingProblem, pose
from autopar.solver import solve
from autopar.solver.problem import Array, Assignment, Problem
from cost_models.hardware import load
from tests import models
from tests.daily import daily
from tests.solver.test_solve import anything

NOISE = 0.05
"""Every cost is multiplied by a factor of its own between 1 - NOISE and 1 + NOISE."""
MESHES = ((2, 2), (2, 4))
LAYERS = 3
WIDE = {"hidden_size": 128, "vocab_size": 512, "num_key_value_heads": 4}
"""A Llama for which splitting is worth its latency: three layers."""
TIGHT = 0.8
"""A memory limit, as a share of the bytes of the fastest plan."""
CASES: dict[str, Any] = {**models.CASES, "llama": lambda: models.llama(LAYERS, **WIDE)}


@cache
def posed(name: str, shape: tuple[int, ...], hardware: str = "cpu") -> ShardingProblem:
    """A case's problem and all that is needed to read its answers."""
    model, inputs, loss = CASES[name]()
    graph = with_outputs(capture(model, inputs, loss=loss), ())
    return pose(graph, Mesh.of(*shape), load(hardware), Settings(), saved(graph))


@cache
def best(name: str, shape: tuple[int, ...], hardware: str = "cpu") -> Assignment:
    """The answer without noise."""
    return solve(posed(name, shape, hardware).priced.problem)


def noisy(problem: Problem, seed: int, alike: bool) -> Problem:
    """Every finite cost times a factor of its own; `alike`: equal tables get equal noise.

    A profile that is off is off by the same factor in every layer; a measurement is not.
    """
    rng = np.random.default_rng(seed)
    known: dict[int, Array] = {}

    def shaken(costs: Array) -> Array:
        if not alike or id(costs) not in known:
            factors = rng.uniform(1 - NOISE, 1 + NOISE, costs.shape)
            known[id(costs)] = np.where(np.isfinite(costs), costs * factors, costs)
        return known[id(costs)]

    def of(uncovered: Array | None) -> Array | None:
        return None if uncovered is None else shaken(uncovered)

    return Problem(
        tuple(
            replace(v, seconds=shaken(v.seconds), uncovered=of(v.uncovered))
            for v in problem.variables
        ),
        tuple(
            replace(f, seconds=shaken(f.seconds), uncovered=of(f.uncovered))
            for f in problem.factors
        ),
    )


def worst_of(problem: Problem, limit: float | None, seeds: range, alike: bool) -> float:
    """The largest true cost of a plan that was chosen under noise, relative to the true choice's."""
    chosen = solve(problem, limit).seconds
    answers = [solve(noisy(problem, seed, alike), limit) for seed in seeds]
    return max(problem.seconds(answer.states) / chosen for answer in answers)


@pytest.mark.parametrize(
    ("name", "shape", "alike"),
    [
        pytest.param("gpt2", (2, 2), True, marks=pytest.mark.slow),
        pytest.param("llama", (2, 4), True, marks=pytest.mark.slow),
        pytest.param("bert", (2, 4), False, marks=pytest.mark.slow),
        ("mlp", (2, 4), True),
        ("cnn", (2, 4), False),
    ],
)
def test_noise(name: str, shape: tuple[int, ...], alike: bool) -> None:
    """Everything is tried in the slow run."""
    problem = posed(name, shape).priced.problem
    assert worst_of(problem, None, range(1), alike) <= 1 + NOISE


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_noise_within_a_limit(name: str) -> None:
    problem, limit = posed(name, (2, 2)).priced.problem, TIGHT * best(name, (2, 2)).nbytes
    assert worst_of(problem, limit, range(3), alike=True) <= 1 + NOISE


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("hardware", ["cpu", "h100"])
@pytest.mark.parametrize("shape", MESHES)
@pytest.mark.parametrize("name", models.CASES)
def test_much_noise(name: str, shape: tuple[int, ...], hardware: str) -> None:
    """Two draws of either kind, without a limit and with one."""
    problem = posed(name, shape, hardware).priced.problem
    for limit in (None, TIGHT * best(name, shape, hardware).nbytes):
        for alike in (True, False):
            assert worst_of(problem, limit, range(2), alike) <= 1 + NOISE


def shuffled(problem: Problem, seed: int) -> Problem:
    """The same problem; its factors in another order."""
    factors = list(problem.factors)
    random.Random(seed).shuffle(factors)
    return Problem(problem.variables, tuple(factors))


def twice(problem: Problem) -> Problem:
    """Every state of every variable a second time, behind all others."""
    again = [np.r_[0 : v.size, 0 : v.size] for v in problem.variables]

    def grown(costs: Array, scope: tuple[int, ...]) -> Array:
        return costs[np.ix_(*(again[index] for index in scope))]

    variables = tuple(
        replace(
            v,
            seconds=grown(v.seconds, (i,)),
            nbytes=grown(v.nbytes, (i,)),
            uncovered=None if v.uncovered is None else grown(v.uncovered, (i,)),
            kept=None if v.kept is None else grown(v.kept, (i,)),
        )
        for i, v in enumerate(problem.variables)
    )
    factors = tuple(
        replace(
            f,
            seconds=grown(f.seconds, f.scope),
            nbytes=None if f.nbytes is None else grown(f.nbytes, f.scope),
            uncovered=None if f.uncovered is None else grown(f.uncovered, f.scope),
            kept=None if f.kept is None else grown(f.kept, f.scope),
        )
        for f in problem.factors
    )
    return Problem(variables, factors)


def check_ties(problem: Problem, limit: float | None) -> None:
    """The same states again: asked again, in another order, with copies of all states behind them."""
    states = solve(problem, limit).states
    for other in (problem, shuffled(problem, 0), shuffled(problem, 1), twice(problem)):
        assert solve(other, limit).states == states


@settings(max_examples=30)
@given(anything, st.floats(0, 1), st.booleans())
def test_ties_of_random_problems(problem: Problem, share: float, limited: bool) -> None:
    """Costs in quarters: most of these problems have many best assignments."""
    limit = share * sum(float(v.nbytes.max()) for v in problem.variables) if limited else None
    try:
        solve(problem, limit)
    except InfeasibleError:
        return
    check_ties(problem, limit)


@pytest.mark.parametrize("name", ["mlp", pytest.param("llama", marks=pytest.mark.slow)])
def test_ties_of_real_graphs(name: str) -> None:
    problem = posed(name, (2, 2)).priced.problem
    limit = TIGHT * best(name, (2, 2)).nbytes if name == "mlp" else None
    check_ties(problem, limit)


def by_layer(graph: Graph, plan: Plan) -> list[dict[str, list[str]]]:
    """Per layer: the types of its parameters and operators, by path without the layer's number."""
    found: list[defaultdict[str, list[str]]] = [defaultdict(list) for _ in range(LAYERS)]
    for node in graph.nodes:
        path = node.target if node.is_leaf else node.path
        match = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", path)
        if match:
            stored = plan.parameter[node.target].stored if node.op == "parameter" else ""
            found[int(match[1])][match[2]].append(f"{stored} {plan.choice[node.name]}")
    return [dict(layer) for layer in found]


@pytest.mark.thorough
@pytest.mark.parametrize(("shape",), daily([(s,) for s in MESHES], [(MESHES[0],)]))
def test_equal_layers_get_equal_choices(shape: tuple[int, ...]) -> None:
    """And q, k and v are stored, used and computed alike."""
    made = posed("llama", shape)
    layers = by_layer(made.graph, made.compilation(best("llama", shape)).plan)
    assert len(layers[0]) > 20
    assert all(layer == layers[0] for layer in layers)
    q, k, v = (
        (layers[0][f"self_attn.{p}_proj.weight"], layers[0][f"self_attn.{p}_proj/linear"])
        for p in "qkv"
    )
    assert q == k == v


@pytest.mark.parametrize("shape", MESHES)
def test_equal_layers_under_noise(shape: tuple[int, ...]) -> None:
    """A profile that is off is off by the same in every layer: the layers stay equal."""
    made = posed("llama", shape)
    answer = solve(noisy(made.priced.problem, 0, alike=True))
    layers = by_layer(made.graph, made.compilation(answer).plan)
    assert all(layer == layers[0] for layer in layers)
