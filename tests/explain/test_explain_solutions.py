"""Every alternative is the best plan that has it: brute force, and plans with it pinned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import nn

import autopar
from autopar.compile.planned import captured_for
from autopar.errors import InternalError
from autopar.explain import explain, explain_plan
from autopar.explain.explained import hardware_of
from autopar.explain.explanation import Explanation
from autopar.explain.replanner import ConstrainedReplanner
from autopar.explain.target import stored
from autopar.plans.decisions import ParameterPlan
from autopar.plans.plan import Plan
from autopar.sharding.asked import posed_for
from autopar.sharding.space import Candidates, Priced
from autopar.solver import best_with_each_state, solve
from autopar.solver.brute_force import brute_force
from autopar.solver.problem import Problem
from autopar.verify import certify
from tests.models import gpt2, llama, mlp
from tests.solver.test_solve import anything, hides

ON = {"hardware": "h100"}
ROUGHLY = {"rel": 1e-6}


@settings(max_examples=25)
@given(anything)
def test_a_problem_with_less_to_choose_from(problem: Problem) -> None:
    """Restricted and solved, it is what brute force finds; never below the bound of each state."""
    if brute_force(problem) is None:
        return
    names = tuple(f"v{index}" for index in range(len(problem.variables)))
    priced = Priced(problem, names, Candidates({}, {}))
    for index, variable in enumerate(problem.variables):
        bounds = best_with_each_state(problem, index)
        for kept in ({0}, set(range(variable.size)) - {0}):
            if not kept:
                continue
            only = priced.only({names[index]: kept}).problem
            assert np.isinf(
                only.variables[index].seconds[[*set(range(variable.size)) - kept]]
            ).all()
            expected = brute_force(only)
            bound = min(bounds[state] for state in kept)
            if expected is None:
                assert np.isinf(bound)
                continue
            found = solve(only)
            assert found.seconds == pytest.approx(expected.seconds, **ROUGHLY)
            assert bound <= found.seconds * (1 + 1e-6) + 1e-9
            if not hides(problem):
                assert bound == pytest.approx(found.seconds, **ROUGHLY)


def explained(plan: Plan, target: str, case: Any, rows: int = 4) -> Explanation:
    model, inputs, loss = case
    found = explain_plan(plan, target, model, inputs, loss=loss, rows=rows)
    assert [each.is_chosen for each in found.alternatives].count(True) == 1
    assert found.alternatives[0] is found.chosen
    return found


def pins(plan: Plan, name: str, entry: ParameterPlan) -> dict[str, dict[str, str]]:
    """The constraints that leave a parameter nothing but this."""
    mesh = plan.mesh
    return {
        f"{subject}:{name}": {
            axis: str(form.local(place, mesh)) for place, axis in enumerate(mesh.names)
        }
        for subject, form in (("stored", entry.stored), ("leaf", entry.leaf))
    }


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("make", "mesh", "name"),
    [
        (mlp, (2, 2), "up.weight"),
        pytest.param(gpt2, (2,), "transformer.h.0.mlp.c_fc.weight", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("preset", [None, "megatron"])
def test_a_parameters_alternatives_are_plans_with_it_pinned(
    make: Any, mesh: tuple[int, ...], name: str, preset: str | None
) -> None:
    case = make()
    model, inputs, loss = case
    asked = {"loss": loss, "preset": preset, **ON}
    plan = autopar.plan(model, mesh, inputs, **asked)
    found = explained(plan, name, case, rows=2)
    made = [each for each in found.alternatives if each.plan is not None]
    assert len(made) > (1 if preset is None else 0)
    for each in made:
        entry = each.plan.parameter[name]
        assert stored(str(entry.stored), str(entry.leaf)) == each.types
        pinned = autopar.plan(model, mesh, inputs, **asked, constraints=pins(plan, name, entry))
        assert pinned.objective_s <= each.plan.objective_s * (1 + 1e-3)
        if "of=" not in each.types:  # constraints speak of types as a rank sees them
            assert pinned.objective_s == pytest.approx(each.plan.objective_s, rel=1e-3)
        assert each.difference == plan.diff(each.plan)
        assert each.plan.objective_s >= each.bound_s * (1 - 1e-6)
        assert each.more_s == each.plan.estimate.step_s - plan.estimate.step_s


class Inner(nn.Module):
    """All of a model in one module, so that a preset of the module is the preset of the model."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        return self.inner(**batch).loss


@pytest.mark.slow
def test_a_modules_alternatives_are_the_presets_and_recomputation() -> None:
    model, inputs, _ = llama()
    case = (Inner(model), inputs, None)
    plan = autopar.plan(case[0], (2, 2), inputs, **ON)
    found = explained(plan, "inner", case)
    ways = {each.types: each for each in found.alternatives if not each.is_chosen}
    for name in ("ddp", "fsdp", "megatron", "zero2"):
        preset = autopar.plan(case[0], (2, 2), inputs, preset=name, **ON)
        if name not in ways:
            assert name in found.chosen.types
            continue
        assert ways[name].plan is not None
        assert ways[name].plan.objective_s == pytest.approx(preset.objective_s, rel=1e-3)
    full = autopar.plan(case[0], (2, 2), inputs, recompute="full", **ON)
    assert "keeps all for the backward" in found.chosen.types
    recomputed = ways["recompute full"].plan
    assert recomputed is not None and recomputed.recompute_of == full.recompute_of
    assert recomputed.objective_s == pytest.approx(full.objective_s, rel=1e-3)


@pytest.mark.slow
def test_a_block_is_changed_alone() -> None:
    """Of one of two blocks: what is recomputed or split otherwise is that one."""
    case = llama()
    model, inputs, _ = case
    plan = autopar.plan(model, (2,), inputs, **ON)
    found = explained(plan, "layers.1", case)
    assert (found.kind, found.path) == ("block", "model.layers.1")
    ways = {each.types: each for each in found.alternatives}
    for mode in ("selective", "full"):
        made = ways[f"recompute {mode}"].plan
        assert made is not None and made.recompute_of == {"model.layers.1": mode}
    whole = next(each.plan for name, each in ways.items() if name.startswith("ddp"))
    if whole is not None:
        for name, entry in whole.parameter.items():
            if name.startswith("model.layers.1."):
                assert not entry.stored.is_split


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.95, 0.7])
def test_within_a_memory_limit(share: float) -> None:
    case = gpt2()
    model, inputs, _ = case
    free = autopar.plan(model, (2,), inputs, **ON)
    limit = share * free.estimate.memory_nbytes
    plan = autopar.plan(model, (2,), inputs, memory_limit=limit, **ON)
    name = "transformer.h.0.mlp.c_fc.weight"
    found = explained(plan, name, case, rows=2)
    assert sum(each.plan is not None for each in found.alternatives) > 1
    for each in found.alternatives:
        if each.plan is None:
            continue
        assert each.plan.estimate.memory_nbytes <= limit
        entry = each.plan.parameter[name]
        pinned = autopar.plan(
            model, (2,), inputs, memory_limit=limit, constraints=pins(plan, name, entry), **ON
        )
        assert each.plan.objective_s == pytest.approx(pinned.objective_s, rel=2e-2)


def test_alternatives_pass_the_certificate() -> None:
    """They are plans like any other, of an operator too."""
    case = mlp()
    model, inputs, loss = case
    plan = autopar.plan(model, (2, 2), inputs, loss=loss, **ON)
    graph = captured_for(plan, model, inputs, loss)
    posed = posed_for(plan, graph, hardware_of(plan, None))
    found = explain(plan, posed, "up/linear")
    assert found.kind == "operator"
    for each in found.alternatives:
        if each.plan is not None:
            assert str(each.plan.choice["up"]) == each.types
            checks = certify(each.plan, posed, bound=False)
            assert all(c.ok for c in checks), [c for c in checks if not c.ok]


def test_a_cost_below_its_bound_is_a_defect() -> None:
    case = mlp()
    model, inputs, loss = case
    plan = autopar.plan(model, (2,), inputs, loss=loss, **ON)
    graph = captured_for(plan, model, inputs, loss)
    again = ConstrainedReplanner(plan, posed_for(plan, graph, hardware_of(plan, None)))
    again.check(again.stated, plan.objective_s)
    with pytest.raises(InternalError, match="below the bound"):
        again.check(again.stated, plan.objective_s * 1.01)
