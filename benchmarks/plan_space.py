"""A small model, and every plan of a small space of its plans: what `all_plans.py` runs and times.

On each mesh axis each of the two linear layers splits its batch, its columns (output features) or its
rows (input features): 81 plans.  Everything else (conversions, how weights rest and enter, the other
operators) is what the solver makes of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from autopar.capture import capture
from autopar.capture.saved import saved
from autopar.compile.outputs import with_outputs
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.ir.placement import S
from autopar.plans.decisions import OpSharding
from autopar.sharding.sharding_problem import Compilation, Settings, ShardingProblem, pose
from autopar.solver import solve
from autopar.solver.problem import Problem
from cost_models.hardware import Hardware

MESH = Mesh.of(2, 2)
LAYERS = ("up", "down")
WAYS = ("batch", "columns", "rows")
BATCH, WIDTH, HIDDEN = 1024, 256, 1024
MODEL = f"linear {WIDTH} x {HIDDEN}, GELU, linear, residual; batch {BATCH}, float32"

Word = tuple[tuple[str, ...], ...]
"""For each layer: what it splits on each mesh axis."""


class Pair(nn.Module):
    """Two linear layers around a GELU, past which the input is added."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(x + self.down(F.gelu(self.up(x))), goal)


def case() -> tuple[Pair, dict[str, torch.Tensor]]:
    """The model and its batch, equal in every process."""
    torch.manual_seed(0)
    return Pair(), {"x": torch.randn(BATCH, WIDTH), "goal": torch.randn(BATCH, WIDTH)}


def captured() -> Graph:
    """The model's graph, equal in every process."""
    return with_outputs(capture(*case()), ())


def posed_on(hardware: Hardware) -> ShardingProblem:
    """The problem of the model on this hardware."""
    graph = captured()
    return pose(graph, MESH, hardware, Settings(), saved(graph))


def space(posed: ShardingProblem) -> dict[Word, Compilation]:
    """The best plan for every choice of ways; different choices are different plans."""
    per_layer = tuple(itertools.product(WAYS, repeat=len(MESH)))
    words = itertools.product(per_layer, repeat=len(LAYERS))
    plans = {word: best_of(posed, [{ways} for ways in word]) for word in words}
    digests = {made.plan.digest for made in plans.values()}
    if len(digests) != len(plans):
        raise AssertionError(f"{len(plans)} choices give only {len(digests)} plans")
    return plans


def chosen_of(posed: ShardingProblem, plans: Mapping[Word, Compilation]) -> Word:
    """What the solver takes, given the whole space at once: it must be the cheapest that there is."""
    every = set(itertools.product(WAYS, repeat=len(MESH)))
    chosen = best_of(posed, [every for _ in LAYERS]).plan
    least = min(made.plan.objective_s for made in plans.values())
    if not math.isclose(chosen.objective_s, least, rel_tol=1e-9):
        raise AssertionError(f"the solver took {chosen.objective_s} s; {least} s was there")
    return next(word for word, made in plans.items() if made.plan.digest == chosen.digest)


def free_digest(posed: ShardingProblem) -> str:
    """The plan that is best among all, those outside the space included."""
    return posed.compilation(solve(posed.priced.problem)).plan.digest


def best_of(posed: ShardingProblem, allowed: Sequence[set[tuple[str, ...]]]) -> Compilation:
    """The best plan in which each layer is computed in one of its allowed ways."""
    problem, names = posed.priced.problem, posed.priced.names
    variables = list(problem.variables)
    linears = [node.name for node in posed.graph.nodes if node.op == "aten.linear.default"]
    for name, ways in zip(linears, allowed, strict=True):
        index = names.index(name)
        options = posed.priced.candidates.operators[name]
        fits = np.array([ways_of(option) in ways for option in options])
        seconds = np.where(fits, variables[index].seconds, np.inf)
        variables[index] = replace(variables[index], seconds=seconds)
    return posed.compilation(solve(Problem(tuple(variables), problem.factors)))


def ways_of(option: OpSharding) -> tuple[str, ...]:
    """What a linear layer splits on each axis; ``whole`` where nothing."""
    found = []
    for x, weight in zip(*option.inputs[:2], strict=True):
        if isinstance(weight, S):
            found.append("columns" if weight.dim == 0 else "rows")
        else:
            found.append("batch" if isinstance(x, S) else "whole")
    return tuple(found)


def say(word: Word) -> str:
    """``x: batch, batch   y: columns, rows``: what up and down split on each axis."""
    parts = (f"{name}: {', '.join(ways[a] for ways in word)}" for a, name in enumerate(MESH.names))
    return "   ".join(f"{part:19}" for part in parts).rstrip()
