"""The plan says what was padded, to what, on which axes, and what else was considered."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import autopar
from autopar.ir.mesh import Mesh
from autopar.ir.pads import Pad
from autopar.plans.plan import Plan
from autopar.plans.record import Padded, Padding
from autopar.render.text import show_plan, to_text
from tests import parity
from tests.render.text import hand_made


def padded_plan() -> Plan:
    """The plan by hand, with two layers' heads and a table padded."""
    heads = Pad(1, 25, 26, before=3, after=64)
    found = (
        Padding("model.embed.weight", Pad(0, 509, 512), ("x",)),
        *(Padding(f"model.layers.{i}.qkv.weight", heads, ("y",)) for i in range(2)),
    )
    compared = (Padded("nothing", 0.05), Padded("25 -> 26", None))
    return replace(hand_made.plan(), padding=found, padded=compared)


def test_shown() -> None:
    lines = to_text(show_plan(padded_plan())).splitlines()
    assert any("nothing: 50.0 ms; 25 -> 26: not possible" in line for line in lines)
    table = lines[lines.index("padding") :]
    assert [line.split() for line in table[2:5]] == [
        ["model.embed.weight", "0", "509", "512", "x", "0.6%"],
        ["model.layers.0,", "1", "x2"],
        ["qkv.weight", "1", "(3", "blocks,", "each", "64", "long)", "25", "26", "y", "3.8%"],
    ]


def test_plans_without_padding_say_nothing_of_it() -> None:
    assert "padding" not in to_text(show_plan(hand_made.plan()))


def test_json_round_trip_and_old_plans() -> None:
    plan = padded_plan()
    assert Plan.from_json(plan.to_json()) == plan
    old = json.loads(plan.to_json())
    del old["padding"], old["padded"]
    for parameter in old["parameters"]:
        del parameter["pads"]
    assert Plan.from_json(json.dumps(old)).padding == ()


def test_emitted_code_says_it() -> None:
    work = parity.padded_work("uneven_gpt2", (2,), {257: 258, 5: 6})
    assert "padded: 257 -> 258, as in transformer.wte.weight; 0.4% of it wasted" in work.source
    assert "padded: 5 -> 6, as in transformer.h.0.attn.c_attn.weight" in work.source


@pytest.mark.thorough
def test_axes_of_a_real_plan() -> None:
    model, inputs, loss = parity.CASES["uneven_gpt2"]()
    made = autopar.compile_model(
        model,
        (2, 2),
        inputs,
        loss=loss,
        hardware="h100",
        constraints={"used:*.wte.weight": {"y": "S(0)"}},
    )
    assert [(p.leaf, p.pad, p.axes[-1]) for p in made.plan.padding] == [
        ("transformer.wte.weight", Pad(0, 257, 258), "y")
    ]
    assert made.plan.mesh == Mesh.of(2, 2)
    possible = [each.objective_s for each in made.plan.padded if each.objective_s is not None]
    assert made.plan.objective_s in possible and made.plan.padded[0] == Padded("nothing", None)
