"""The roofline: no operator above the roofs that are drawn, with a cache and without, and by stage."""

from __future__ import annotations

from typing import Any

import pytest

import autopar
from autopar.api import compile_staged
from autopar.render.html import Extras, report, roofline, roofline_of_stages
from autopar.render.html.charts import roofline as drawn
from cost_models.hardware import load
from tests.models import CASES


def flat(hardware: str) -> autopar.Compilation:
    model, inputs, loss = CASES["mlp"]()
    return autopar.compile_model(model, (2,), inputs, loss=loss, hardware=hardware)


def height(trace: dict[str, Any], x: float) -> float:
    """Of a roof above a place between its ends, in operations per second."""
    speed, peak = trace["y"][0] / trace["x"][0], max(trace["y"])
    return float(1e12 * min(peak, speed * x))


@pytest.mark.parametrize("hardware", ["cpu", "h100"])
def test_no_operator_is_above_its_roof(hardware: str) -> None:
    made = flat(hardware)
    found = roofline(made.plan, made.graph, load(hardware))
    roofs = [trace for trace in drawn(found)["data"] if trace["name"].startswith("roof")]
    assert any("cache" in trace["name"] for trace in roofs) == (hardware == "cpu")
    for dot in found.dots:
        tops = [height(roof, dot.flops / dot.nbytes) for roof in roofs]
        assert dot.flops / dot.seconds <= 1.001 * max(tops), dot.name


def test_of_stages_all_are_drawn() -> None:
    model, inputs, loss = CASES["mlp"]()
    made = compile_staged(
        model,
        (2,),
        inputs,
        loss=loss,
        hardware="cpu",
        pipeline=autopar.Pipeline(2, schedule="1f1b", microbatches=2),
    )
    found = roofline_of_stages(made.plan, made.stages, load("cpu"))
    names = [trace["name"] for trace in drawn(found)["data"]]
    assert names[-2:] == ["stage 0, forward", "stage 1, forward"]
    text = report(made.plan, Extras(roofline=found))
    assert '"roofline-chart"' in text and "Pass the model" not in text
