"""Of a pipeline one stage is explained: its own graph, devices and memory."""

from __future__ import annotations

from typing import Any

import pytest

import autopar
from autopar.errors import InputError, PlanError
from autopar.explain import explain_plan
from autopar.plans.pipeline_plan import PipelinePlan
from tests.models import gpt2, llama


@pytest.fixture(scope="module")
def planned() -> tuple[PipelinePlan, Any, Any]:
    model, inputs, _ = llama()
    made = autopar.plan(
        model,
        (4,),
        inputs,
        hardware="h100",
        pipeline=autopar.Pipeline(2, schedule="1f1b", microbatches=4),
    )
    assert isinstance(made, PipelinePlan)
    return made, model, inputs


def test_within_the_stage_that_has_it(planned: tuple[PipelinePlan, Any, Any]) -> None:
    plan, model, inputs = planned
    name = "model.layers.1.mlp.up_proj.weight"
    found = explain_plan(plan, name, model, inputs, rows=2)
    own = next(each for each in plan.stages if name in each.plan.parameter)
    assert own.stage == 1
    assert f"stage {own.stage} of 2" in found.scope and "4 microbatches" in found.scope
    assert found.chosen.plan is not None and found.chosen.plan.digest == own.plan.digest
    assert found.chosen.plan.estimate == own.plan.estimate
    assert found.chosen.difference is not None
    shown = found.chosen.difference.figure("step").after
    assert shown == pytest.approx(own.plan.objective_s, rel=1e-3)
    assert shown != pytest.approx(own.plan.estimate.step_s, rel=0.05)
    made = [each.plan for each in found.alternatives if each.plan and not each.is_chosen]
    assert made and all(each.graph_digest == own.plan.graph_digest for each in made)
    assert all(each.objective_s >= own.plan.objective_s * (1 - 1e-6) for each in made)
    assert (
        found.alternatives == explain_plan(plan, name, model, inputs, stage=1, rows=2).alternatives
    )


@pytest.mark.slow
def test_a_block_within_a_stage(planned: tuple[PipelinePlan, Any, Any]) -> None:
    plan, model, inputs = planned
    found = explain_plan(plan, "model.layers.0", model, inputs)
    assert found.kind == "block" and "stage 0 of 2" in found.scope
    ways = {each.types for each in found.alternatives}
    assert {"recompute selective", "recompute full"} <= ways


@pytest.mark.thorough
def test_what_stages_cannot_say(planned: tuple[PipelinePlan, Any, Any]) -> None:
    plan, model, inputs = planned
    for name, stage, said in (
        ("nope", None, "has no 'nope'"),
        ("mlp", None, "Stages 0, 1 all have a 'mlp': say which with stage="),
        ("model.layers.0", 1, "Stage 1 has no 'model.layers.0': look in stage 0."),
        ("model.layers.0", 2, "There is no stage 2: the plan has 2, from 0"),
    ):
        with pytest.raises(InputError) as refused:
            explain_plan(plan, name, model, inputs, stage=stage)
        assert said in str(refused.value)
    half = {name: value[:4] for name, value in inputs.items()}
    with pytest.raises(PlanError, match="not of this model and batch"):
        explain_plan(plan, "model.layers.0", model, half)
    other, others, _ = gpt2()
    with pytest.raises(PlanError, match="not of this model"):
        explain_plan(plan, "model.layers.0", other, others)
