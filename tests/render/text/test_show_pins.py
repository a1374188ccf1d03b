"""What a person asked for is marked: on operators and tensors as on parameters, and in pipelines."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autopar import compile_model
from autopar.api import compile_staged
from autopar.pipeline.build.staged import Staged
from autopar.plans.focus import tensor_facts, within_block
from autopar.render.text import header, operators, show_block, show_pipeline, show_tensor, to_text
from autopar.request.pipeline import Pipeline
from autopar.sharding.sharding_problem import Compilation
from tests.models import CASES
from tests.render.text import hand_made

OPERATOR, SAID = "up/linear", "tensor 'up/linear' on x: S(0)"
PINS = {OPERATOR: {"x": "S(0)"}, "stored:head.weight": {"x": "S(0)"}}


@pytest.fixture(scope="module")
def made() -> Compilation:
    model, inputs, loss = CASES["mlp"]()
    return compile_model(model, (2,), inputs, loss=loss, hardware="h100", constraints=PINS)


@pytest.fixture(scope="module")
def staged() -> Staged:
    model, inputs, loss = CASES["mlp"]()
    return compile_staged(
        model, (4,), inputs, loss=loss, hardware="cpu",
        pipeline=Pipeline(2, "1f1b", 2), memory_limit="1GiB", constraints=PINS,
    )  # fmt: skip


def marked(text: str) -> list[str]:
    """The names with a mark; not the line that says what it means."""
    return [line.split(" ◆")[0].strip() for line in text.splitlines() if " ◆" in line]


def test_a_pinned_operator_is_marked(made: Compilation) -> None:
    text = to_text(operators(made.plan, made.graph))
    assert marked(text) == [OPERATOR] and "◆ you asked for it: see constraints above" in text
    alone = to_text(operators(made.plan))
    assert marked(alone) == []
    assert "Pass the MODEL to see which of them you asked for." in " ".join(alone.split())
    free = replace(made.plan, asked=replace(made.plan.asked, constraints=()))
    assert "asked" not in to_text(operators(free, made.graph)) + to_text(operators(free))


def test_a_block_says_which_constraints_its_marks_mean(made: Compilation) -> None:
    text = to_text(show_block(within_block(made.plan, made.graph, "up"), made.graph))
    assert marked(text) == [OPERATOR] and text.index(SAID) < text.index("◆")
    other = to_text(show_block(within_block(made.plan, made.graph, "norm"), made.graph))
    assert marked(other) == [] and "constraints" not in other


def test_a_tensor_says_what_was_asked_of_its_operator(made: Compilation) -> None:
    node = next(node for node in made.graph.nodes if node.path == OPERATOR)
    found = tensor_facts(made.plan, node.outputs[0].name, made.graph)
    assert found.asked == (SAID,) and f"you asked  {SAID}" in to_text(show_tensor(found))
    other = next(node for node in made.graph.nodes if node.path == "norm/layer_norm")
    assert tensor_facts(made.plan, other.name, made.graph).asked == ()
    unknown = tensor_facts(made.plan, node.outputs[0].name)
    assert unknown.asked is None and "pass the MODEL" in to_text(show_tensor(unknown))


def test_a_pipeline_says_what_was_asked(staged: Staged) -> None:
    text = to_text(show_pipeline(staged.plan, staged.stages.graphs))
    words = " ".join(text.split())
    assert "memory limit 1.0 GiB" in words and "preset none, the solver chose" in words
    assert SAID in words and "stored 'head.weight' on x: S(0)" in words
    assert sorted(marked(text)) == ["head.weight", OPERATOR]
    assert "head.weight ◆ 1 stored S(0)" in words and f"{OPERATOR} ◆ 0 S(0)" in words
    alone = to_text(show_pipeline(staged.plan))
    assert marked(alone) == ["head.weight"] and "Pass the MODEL" in alone


def test_no_limit_is_no_number() -> None:
    plan = hand_made.plan()
    free = replace(plan, asked=replace(plan.asked, memory_limit=math.inf))
    text = to_text(header(free))
    assert "plans may be larger than the device" in text and "inf" not in text


def test_a_pipeline_without_stages_says_nothing_of_it() -> None:
    assert "preset" not in to_text(show_pipeline(replace(hand_made.pipeline(), stages=())))
