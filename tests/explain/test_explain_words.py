"""What is said: words of choices, the first sentence, golden text, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import autopar
from autopar.api import compile_model
from autopar.errors import InputError, PlanError
from autopar.explain.explained import explain_plan
from autopar.explain.explanation import Alternative, Explanation
from autopar.explain.sentences import sentence
from autopar.explain.spoken import describe
from autopar.explain.target import called, found
from autopar.render.text import explanation, to_text
from autopar.render.text.table import WIDTH
from tests.models import gpt2, llama, mlp
from tests.render.text import hand_made

BATCH, HEADS = "by batch on axis x", "by heads on axis y"


@pytest.fixture(scope="module")
def megatron() -> Any:
    model, inputs, _ = llama()
    return compile_model(model, (2, 2), inputs, hardware="h100", preset="megatron")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("model.layers.0.self_attn.q_proj/linear", f"split {BATCH}, {HEADS}"),
        ("model.layers.0.self_attn.o_proj/linear", f"split {BATCH}, by heads (summed) on axis y"),
        ("model.layers.0.mlp.up_proj/linear", f"split {BATCH}, by rows of the weight on axis y"),
        (
            "model.layers.0.mlp.down_proj/linear",
            f"split {BATCH}, by columns of the weight (summed) on axis y",
        ),
        (
            "model.layers.0.self_attn/scaled_dot_product_attention",
            f"split {BATCH}, {HEADS}",
        ),
        ("model.layers.0.mlp.act_fn/silu", f"split {BATCH}, by features on axis y"),
        (
            "model.layers.0.self_attn.q_proj.weight",
            "replicated on axis x, split by heads on axis y",
        ),
        (
            "model.layers.0.input_layernorm.weight",
            "replicated on every axis",
        ),
    ],
)
def test_words_of_megatron(megatron: Any, path: str, said: str) -> None:
    node = next(node for node in megatron.graph.nodes if node.path == path)
    assert describe(megatron.plan, megatron.graph, node) == said


@pytest.mark.thorough
def test_words_of_weights_that_are_gathered() -> None:
    model, inputs, _ = gpt2()
    for preset, said in (
        ("fsdp", "sharded and gathered at each use, once more for the backward,"),
        ("zero2", "sharded and gathered once a step"),
        ("ddp", "replicated"),
    ):
        made = compile_model(model, (2,), inputs, hardware="h100", preset=preset)
        node = made.graph.node["transformer_h_0_mlp_c_fc_weight"]
        assert describe(made.plan, made.graph, node) == f"{said} on axis x"
    node = next(n for n in made.graph.nodes if n.path == "transformer.h.0.attn.c_attn/addmm")
    assert describe(made.plan, made.graph, node) == "split by batch on axis x"


def hand_made_explanation() -> Explanation:
    """Of the first layer's weight: what another plan costs, one that does not fit, and others."""
    plan, other = hand_made.other(), hand_made.plan()
    ways = (
        Alternative("stored [S(0, of=4), S(0)], in the step [S(0, of=4), S(0)]",
                    "sharded and gathered at each use on axis x, split by rows on axis y", True,
                    0.0412, plan, plan.diff(plan)),
        Alternative("stored [I, S(0)], in the step [R, S(0)]",
                    "replicated on axis x, split by rows on axis y", False, 0.0412, other,
                    plan.diff(other)),
        Alternative("stored [I, I], in the step [R, R]", "", False, 0.05,
                    why="No plan was found that fits 40.0 GiB per device."),
        Alternative("stored [S(1), S(0)], in the step [S(1), S(0)]", "", False, 0.0432),
        Alternative("stored [S(1), I], in the step [S(1), I]", "", False, float("inf")),
    )  # fmt: skip
    name = "model.layers.0.mlp.up.weight"
    return Explanation(name, name, "parameter", sentence(name, ways), ways)


def test_golden(golden: Callable[[str, str], None]) -> None:
    text = to_text(explanation(hand_made_explanation()))
    golden("show_explanation.txt", text)
    assert max(map(len, text.splitlines())) <= WIDTH


def test_golden_of_a_stage(golden: Callable[[str, str], None]) -> None:
    made = hand_made_explanation()
    chosen, other, none = made.alternatives[:3]
    block = replace(
        made,
        name="model.layers.0",
        path="model.layers.0",
        kind="block",
        alternatives=(
            replace(chosen, types="as planned: keeps all for the backward", words="data parallel"),
            replace(other, types="recompute full", words="recomputed"),
            replace(none, types="ddp"),
        ),
        scope="of stage 1 of 2 alone",
    )
    golden("show_explanation_of_a_stage.txt", to_text(explanation(block)))


def test_sentences() -> None:
    made = hand_made_explanation().alternatives
    plan = hand_made.other()
    assert "(stored I on x) leave nothing else" in sentence("up", made[:1], "stored I on x")
    alone = sentence("up", made[:1])
    assert alone.startswith("up is sharded") and "nothing else to choose" in alone
    assert "nothing else is possible (No plan was found" in sentence("up", (made[0], made[2]))
    same = replace(made[1], difference=plan.diff(plan))
    assert "a step would take as long" in sentence("up", (made[0], same))
    less = replace(made[1], difference=hand_made.plan().diff(plan))
    said = sentence("up", (made[0], less))
    assert re.search(r"ms less by the prediction, because \S.* takes \S+ ms less", said), said
    assert said.endswith("by the sum that the solver minimised.")
    alike = replace(made[1], words=made[0].words)
    assert "like all alternatives that were tried" in sentence("up", (made[0], alike))


def test_what_is_said_of_a_difference_adds_up() -> None:
    """Of what grows and what shrinks both are told, and what hides less."""
    one = hand_made.plan()
    flow = one.estimate.flows[-1]
    assert (flow.collective, flow.axis) == ("all_reduce", "y")
    moved = replace(flow, axis="x")
    swapped = replace(
        one.estimate, flows=(*one.estimate.flows[:-1], moved), hidden_s=0.0,
        exposed_s=one.estimate.exposed_s + one.estimate.hidden_s,
    )  # fmt: skip
    ways = (
        Alternative("", "here", True, None, one, one.diff(one)),
        Alternative("", "there", False, None, None, one.diff(replace(one, estimate=swapped))),
    )
    assert sentence("up", ways) == (
        "up is here; if it were there, a step would take 30.0 µs more, because all_reduce on x takes "
        "1.2 s more and 30.0 µs less hides behind compute, though all_reduce on y takes 1.2 s less."
    )


def test_a_step_that_is_longer_for_no_reason() -> None:
    """A file that somebody edited: the sum is told, and no reason is made up."""
    one = hand_made.plan()
    longer = replace(one.estimate, exposed_s=one.estimate.exposed_s + 1.0)
    ways = (
        Alternative("", "here", True, None, one, one.diff(one)),
        Alternative("", "there", False, None, None, one.diff(replace(one, estimate=longer))),
    )
    said = sentence("up", ways)
    assert said == "up is here; if it were there, a step would take 1.0 s more."


def test_words_of_weights_that_rest_otherwise() -> None:
    """A part of what is gathered first, a part of a copy, and what rests as it is used."""
    model, inputs, loss = mlp()
    for rests, enters, said in (
        ("I", "R", "split by rows of the weight (replicated at rest) on axis x"),
        (
            "S(0)",
            "R",
            "split by rows of the weight (sharded at rest, gathered once a step) on axis x",
        ),
        ("S(0)", "S(0)", "split by rows of the weight on axis x"),
    ):
        pins = {"stored:up.weight": rests, "leaf:up.weight": enters, "used:up.weight": "S(0)"}
        asked = {name: f"[{form}]" for name, form in pins.items()}
        made = compile_model(model, (2,), inputs, loss=loss, hardware="h100", constraints=asked)
        node = next(n for n in made.graph.leaves("parameter") if n.target == "up.weight")
        assert describe(made.plan, made.graph, node) == said


def test_what_a_name_means(megatron: Any) -> None:
    plan, graph = megatron.plan, megatron.graph

    def meant(name: str) -> str:
        return called(found(plan, graph, name))

    assert meant("q_proj") == meant("self_attn.q_proj") == meant("layers.0.self_attn.q_proj/linear")
    assert meant("mlp") == meant("layers.0.mlp") == meant("model.layers.*.mlp")
    assert meant("layers.1") == "model.layers.1"
    assert meant("model") == "model"
    assert "up_proj.weight" in meant("up_proj.weight")


class Recurrent(nn.Module):
    """Of `r` the emitted code calls a tensor of zeros ``r``, its first state."""

    def __init__(self) -> None:
        super().__init__()
        self.r = nn.LSTM(4, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.r(x)[0].sum()


def test_a_module_is_not_what_only_serves_it() -> None:
    made = compile_model(Recurrent(), (2,), {"x": torch.zeros(8, 2, 4)}, hardware="h100")
    assert made.graph.node["r"].path == "r/zeros"
    assert called(found(made.plan, made.graph, "r")).endswith("(r/lstm)")
    assert called(found(made.plan, made.graph, "r/zeros")) == "r (r/zeros)"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nope", "has no 'nope'. Names look like"),
        ("upproj.weight", "Names look like model.layers.0.mlp.up_proj.weight"),
        ("input_ids", "is not decided"),
        ("weight", "matches 21 targets"),
        ("*norm", "matches 5 targets"),
        ("", "has no ''"),
    ],
)
def test_names_that_mean_nothing_or_much(megatron: Any, name: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        found(megatron.plan, megatron.graph, name)
    assert said in str(refused.value)


def test_of_another_model() -> None:
    model, inputs, loss = mlp()
    plan = autopar.plan(model, (2,), inputs, loss=loss, hardware="h100")
    assert isinstance(plan, autopar.Plan)
    half = {name: value[:4] for name, value in inputs.items()}
    with pytest.raises(PlanError, match="not of this model and batch"):
        explain_plan(plan, "up", model, half, loss=loss)
    with pytest.raises(InputError, match="leave stage= out"):
        explain_plan(plan, "up", model, inputs, loss=loss, stage=0)
    with pytest.raises(InputError, match="pass 1 or more alternatives"):
        explain_plan(plan, "up", model, inputs, loss=loss, rows=0)
    with pytest.raises(InputError, match="not among the profiles"):
        explain_plan(replace(plan, hardware="mine"), "up", model, inputs, loss=loss)
    dear = explain_plan(plan, "up", model, inputs, loss=loss, hardware="cpu", rows=1)
    assert dear.chosen.plan is not None and dear.chosen.plan.hardware != plan.hardware


def test_reasons_have_the_sign_and_size_of_what_they_explain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Flows that cancel are none by themselves: what hides less is told too, or all of it as one."""
    one = hand_made.plan()
    flows = one.estimate.flows
    moved = tuple(
        replace(flow, seconds=flow.seconds + (0.1 if place % 2 else -0.1))
        for place, flow in enumerate(flows[: 2 * (len(flows) // 2)])
    )
    before, after = (
        replace(one.estimate, flows=flows[: len(moved)]),
        replace(one.estimate, flows=moved),
    )
    after = replace(after, exposed_s=after.exposed_s + 5e-3, hidden_s=after.hidden_s - 5e-3)
    two = replace(one, estimate=before)
    ways = (
        Alternative("", "here", True, None, two, two.diff(two)),
        Alternative("", "there", False, None, None, two.diff(replace(one, estimate=after))),
    )
    assert "and 5.0 ms less hides behind compute, though" in sentence("up", ways)
    monkeypatch.setattr("autopar.explain.sentences.REASONS", 2)
    said = sentence("up", ways)
    assert "5.0 ms more, because communication that compute does not hide takes 5.0 ms more" in said
