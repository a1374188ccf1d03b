"""Random valid plans: uniform over the *kinds of types*, so that rare conversions are tried as well."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from autopar import rules
from autopar.cost.prices import Prices
from autopar.cost.routes import Routes
from autopar.ir.blocks import MODES, blocks
from autopar.ir.graph import Graph, Saved
from autopar.ir.mesh import Mesh
from autopar.ir.placement import S, Sharding
from autopar.memory.recompute_set import again
from autopar.memory.saved_tensors import SavedTensors
from autopar.plans.plan import Plan
from autopar.sharding.assemble import assemble
from autopar.sharding.sharding_problem import Settings, candidates_of
from autopar.sharding.space import Decisions
from cost_models.hardware import load

T = TypeVar("T")
PLAIN = Settings()


def kinds(sharding: Sharding) -> str:
    """``SR`` for ``[S(0), R]``."""
    return "".join("S" if isinstance(kind, S) else kind.name for kind in sharding)


def random_plan(
    graph: Graph,
    mesh: Mesh,
    seed: int,
    saved: Mapping[str, Saved],
    recomputes: bool = False,
    settings: Settings = PLAIN,
    alike: bool = False,
) -> Plan:
    """Any valid plan; the same seed gives the same plan.

    With `recomputes`, each block may be again.  With `alike`, corresponding operators of all blocks get
    the same types, so that emitted code has loops, and their weights are prefetched.
    """
    rng = random.Random(seed)

    def draws(name: str) -> random.Random:
        return random.Random(f"{seed} {re.sub(r'[0-9]+', '', name)}") if alike else rng

    # Datasheet prices make every collective worth using; a measured profile may avoid one.
    prices = Prices(mesh, load("h100"))
    candidates = candidates_of(graph, mesh, settings)
    operators = {
        name: _pick(draws(name), options, lambda o: "|".join(map(kinds, o.outputs)))
        for name, options in sorted(candidates.operators.items())
        if name not in candidates.parameters
    }
    parameters = {
        name: _pick(
            draws(name), options, lambda o: f"{kinds(o.stored)}>{kinds(o.leaf)}{o.regather}"
        )
        for name, options in sorted(candidates.parameters.items())
    }
    recompute = {b.path: draws("").choice(MODES) for b in blocks(graph)} if recomputes else {}
    plan = assemble(
        graph,
        Decisions(operators, parameters, recompute),
        prices,
        Routes(mesh, prices.step, prices.weight_step),
        saved=saved,
        optimizer="SGD",
        preset="random",
        prefetch=alike,
    )
    return _with_random_regathers(plan, graph, saved, draws)


def _with_random_regathers(
    plan: Plan,
    graph: Graph,
    saved: Mapping[str, Saved],
    draws: Callable[[str], random.Random],
) -> Plan:
    """Any gather of a tensor with gradient may be repeated in the backward."""
    conversions = tuple(
        replace(c, regather=draws(f"{c.tensor} again").random() < 0.5)
        if isinstance(c.source[c.axis], S)
        and kinds(c.target)[c.axis] in "RI"
        and graph.tensors[c.tensor].differentiable
        else c
        for c in plan.conversions
    )
    run_again = again(
        graph, plan.choice, conversions, plan.recompute_of, saved, plan.mesh, plan.precision
    )
    keeps = SavedTensors(graph, plan.choice, conversions, plan.mesh, saved, run_again)
    return replace(plan, conversions=keeps.effective())


def _pick(rng: random.Random, options: tuple[T, ...], group: object) -> T:
    groups: defaultdict[str, list[T]] = defaultdict(list)
    for option in options:
        groups[group(option)].append(option)  # type: ignore[operator]
    return rng.choice(groups[rng.choice(sorted(groups))])


__all__ = ["kinds", "random_plan", "rules"]
