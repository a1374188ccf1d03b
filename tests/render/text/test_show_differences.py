"""Why a plan does not belong to a model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar import compile_model
from autopar.plans.differences import differences
from autopar.sharding.sharding_problem import Compilation
from tests.models import CASES


@pytest.fixture(scope="module")
def made() -> Compilation:
    model, inputs, loss = CASES["mlp"]()
    return compile_model(model, (2,), inputs, loss=loss, hardware="h100", preset="ddp")


def test_none(made: Compilation) -> None:
    assert differences(made.plan, made.graph) == ()


def test_other_sizes(made: Compilation) -> None:
    foreign = replace(made.plan, graph_digest="0" * 12)
    assert "batch, sequence" in differences(foreign, made.graph)[0]


def test_parameters_and_model(made: Compilation) -> None:
    first, second, *rest = made.plan.parameters
    foreign = replace(
        made.plan,
        graph_digest="0" * 12,
        model="Other",
        parameters=(replace(first, name="gone"), replace(second, shape=(7,)), *rest),
    )
    assert differences(foreign, made.graph) == (
        "the plan is for Other, the model is MLP",
        "the plan has parameters that the model lacks: gone",
        "the model has parameters that the plan lacks: up.weight",
        "up.bias is 128 in the model and 7 in the plan",
    )


def test_operators(made: Compilation) -> None:
    foreign = replace(made.plan, graph_digest="0" * 12, choices=made.plan.choices[:-1])
    count, only = differences(foreign, made.graph)
    assert count.startswith("the plan has ")
    assert only.startswith("only in the model: ")
