"""Parts of a plan: a stage, a block, a tensor; and marks beside what a person asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from autopar import compile_model
from autopar.api import compile_staged
from autopar.errors import InputError
from autopar.ir.split import computing, shared
from autopar.plans.focus import holding, stage_plan, tensor_facts, within_block
from autopar.render.text import show_block, show_plan, show_tensor, to_text
from autopar.request.constraints import Constraint
from autopar.request.pipeline import Pipeline
from tests.models import CASES
from tests.render.text import hand_made


def test_golden(golden: Callable[[str, str], None]) -> None:
    plan = hand_made.plan()
    parts = [
        show_tensor(tensor_facts(plan, "scale")),
        show_tensor(tensor_facts(plan, "up.weight")),
        show_tensor(tensor_facts(plan, "ln_1_3")),
        show_block(within_block(plan, None, "model.layers.*.mlp")),
    ]
    golden("show_focus.txt", "\n".join(map(to_text, parts)))


@pytest.mark.thorough
def test_a_block_holds_its_own_and_nothing_else() -> None:
    model, inputs, loss = CASES["gpt2"]()
    made = compile_model(model, (2, 2), inputs, loss=loss, hardware="h100", preset="fsdp_megatron")
    block = within_block(made.plan, made.graph, "transformer.h.0")
    assert {p.name for p in block.parameters} == {
        p.name for p in made.plan.parameters if p.name.startswith("transformer.h.0.")
    }
    starts = ("transformer.h.0.", "transformer.h.0/")
    own = {node.name for node in made.graph.nodes if node.path.startswith(starts)}
    assert {c.node for c in block.choices} == own and block.conversions
    text = to_text(show_block(block, made.graph))
    assert "attn.c_attn/addmm" in text and "h.1" not in text and "ln_f" not in text


def test_stages_of_a_pipeline() -> None:
    plan = hand_made.pipeline()
    assert stage_plan(plan, 1).parameters == plan.stages[1].plan.parameters
    assert holding(plan, "model.layers.5") == 1 and holding(plan, "embed.weight") == 0
    with pytest.raises(InputError, match="no stage 2: the plan has 2"):
        stage_plan(plan, 2)


@pytest.mark.thorough
def test_what_every_stage_computes_for_itself_is_in_all() -> None:
    """And an operator that is only one stage's is found by its path, which the graphs know."""
    model, inputs, loss = CASES["llama"]()
    made = compile_staged(
        model,
        (2,),
        inputs,
        loss=loss,
        hardware="cpu",
        pipeline=Pipeline(2, schedule="1f1b", microbatches=2),
    )
    graphs = made.stages.graphs
    assert holding(made.plan, "model.layers.1.mlp.act_fn", graphs) == 1
    with pytest.raises(InputError, match="No stage has"):
        holding(made.plan, "model.layers.1.mlp.act_fn")
    every = [{n.path for n in computing(graph) if n.name in shared(graph)} for graph in graphs]
    assert "model.rotary_emb/cos" in every[0] & every[1]
    with pytest.raises(InputError, match=r"Stages 0, 1 all have a 'model\.rotary_emb'"):
        holding(made.plan, "model.rotary_emb", graphs)


def test_pins_are_marked() -> None:
    plan = hand_made.plan()
    marked = [line for line in to_text(show_plan(plan)).splitlines() if "◆" in line]
    assert len(marked) == 2 and marked[0].startswith("scale ◆") and "you asked" in marked[1]
    free = replace(plan, asked=replace(plan.asked, constraints=()))
    assert "◆" not in to_text(show_plan(free))
    layer = Constraint.of("used", "*.3.*.up.weight", "S(0)", "y")
    one = replace(plan, asked=replace(plan.asked, constraints=(layer,)))
    text = to_text(show_plan(one))
    assert "model.layers.3.mlp.up.weight ◆" in text.replace("\n    ", "")


def test_wrong_names_are_told() -> None:
    plan = hand_made.plan()
    for call, said in (
        (lambda: tensor_facts(plan, "up.wieght"), "Did you mean 'model.layers.0.mlp.up.weight'"),
        (lambda: tensor_facts(plan, "*.weight"), "means 19 parameters"),
        (lambda: within_block(plan, None, "model.layer.0"), "Did you mean"),
        (
            lambda: within_block(plan, None, "zzz"),
            "Names look like model.embed, model.layers.0.norm",
        ),
        (lambda: holding(hand_made.pipeline(), "nope"), "No stage has 'nope'"),
        (
            lambda: holding(hand_made.pipeline(), "model"),
            "Stages 0, 1 all have a 'model': say which with stage=",
        ),
    ):
        with pytest.raises(InputError, match=said):
            call()
