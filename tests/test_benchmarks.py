"""What the benchmarks of plans count and rank, without running a plan."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from autopar.plans.plan import Plan
from autopar.solver import solve
from cost_models.hardware import load
from tests import parity

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def test_the_space_holds_different_plans_and_the_solver_takes_the_cheapest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On two of the three ways."""
    import plan_space

    monkeypatch.setattr(plan_space, "WAYS", ("batch", "rows"))
    posed = plan_space.posed_on(load("cpu"))
    plans = plan_space.space(posed)
    assert len(plans) == 2 ** (2 * len(plan_space.MESH))
    chosen = plans[plan_space.chosen_of(posed, plans)].plan
    assert chosen.objective_s == min(made.plan.objective_s for made in plans.values())
    assert chosen.objective_s >= solve(posed.priced.problem).seconds - 1e-12
    assert len({plan_space.say(word) for word in plans}) == len(plans)


def row(name: str, predicted_s: float, *rounds_s: float) -> Any:
    import plan_table

    middle = sorted(rounds_s)[len(rounds_s) // 2]
    return plan_table.Row(name, name, predicted_s, predicted_s, middle, rounds_s, name == "b")


def test_summary() -> None:
    import all_plans
    import plan_table

    rows = [row("a", 2.0, 1.0, 1.1, 1.0), row("b", 1.0, 1.1, 1.1, 1.1), row("c", 3.0, 2, 2, 2)]
    found = plan_table.summary(rows, free_is_chosen=True)
    assert found["its measured rank"] == 2 and found["its step to the fastest's"] == 1.1
    assert found["noise of such a ratio"] == 0.1 and found["within noise of the fastest"]
    assert found["Kendall tau, predicted to measured"] == round(1 / 3, 3)
    lines = plan_table.table(rows).splitlines()
    assert lines[2].split()[:3] == ["2", "*", "b"] and lines[2].split()[-1] == "1"
    assert len(json.loads(all_plans.to_json({"summary": found}, rows))["results"]) == 3


def found(model: str, plan: str, predicted_s: float, *seconds: float) -> dict[str, Any]:
    """What a rank of `predict.py` writes, with one large and one small line and two collectives."""

    def line(where: str, predicted: float, measured: float) -> dict[str, Any]:
        return {
            "block": "h.0", "place": where, "predicted_forward_s": predicted,
            "measured_forward_s": measured, "predicted_backward_s": 0.0, "measured_backward_s": 0.7,
        }  # fmt: skip

    def flow(calls: int, predicted: float, measured: float) -> dict[str, Any]:
        return {
            "axis": "x", "collective": "all_reduce", "when": "backward", "predicted_calls": calls,
            "measured_calls": calls, "predicted_s": predicted, "measured_s": measured,
        }  # fmt: skip

    beside = {
        "lines": [line("large", 0.5, 0.4), line("small", 0.002, 0.001), line("conversion", 0.0, 0.5)],
        "flows": [flow(1, 0.3, 0.2), flow(0, 0.0, 0.4), flow(2, 0.1, 0.0)],
        "predicted_update_s": 0.2, "measured_update_s": 0.1,
    }  # fmt: skip
    return {
        "network": "2 ranks", "model": model, "plan": plan, "seconds": list(seconds),
        "predicted_s": predicted_s, "beside": beside, "slower": 1.2,
    }  # fmt: skip


def test_predictions_are_compared_with_medians_and_what_is_too_small_is_left_out() -> None:
    import predict_table

    made = found("GPT-2", "ddp", 1.1, 0.9, 1.0, 9.0)
    one = predict_table.Row.of(made)
    assert one.step.measured_s == 1.0 and one.step.error == pytest.approx(0.1)
    assert [pair.what for pair in one.operators] == ["h.0 large forward"]
    assert [pair.error for pair in one.operators] == [pytest.approx(0.25)]
    assert [pair.error for pair in one.collectives] == [pytest.approx(0.5)]
    assert one.update.error == pytest.approx(1.0)
    made["beside"]["lines"][1]["predicted_forward_s"] = 1.0
    made["beside"]["flows"][2]["measured_calls"] = 0
    promised = predict_table.Row.of(made)
    assert [pair.what for pair in promised.operators] == ["h.0 large forward", "h.0 small forward"]
    assert [pair.error for pair in promised.collectives] == [pytest.approx(0.5), math.inf]


def test_the_order_of_plans_is_that_within_a_model() -> None:
    """Two of the plans of one model are predicted in the wrong order; models differ by far."""
    import predict_table

    rows = [
        predict_table.Row.of(found(*each))
        for each in (
            ("GPT-2", "ddp", 1.0, 1.0), ("GPT-2", "fsdp", 2.0, 2.0), ("GPT-2", "solver", 0.9, 0.8),
            ("Llama", "ddp", 10.0, 12.0), ("Llama", "fsdp", 12.0, 10.0),
        )
    ]  # fmt: skip
    said = predict_table.summary(rows)
    assert said["Kendall tau of plans, mean over model x network"] == 0.0  # of 1 and -1
    assert said["Kendall tau of all combinations"] == pytest.approx(0.8)
    assert said["error of the step, worst"] == 0.2
    assert said["error of an operator group, median"] == 0.25
    lines = predict_table.table(rows).splitlines()
    assert len(lines) == 6 and "-17%" in lines[4] and "+20%" in lines[5] and "x1.20" in lines[5]
    assert predict_table.middle(()) is None and predict_table.order_of_plans(rows[:1]) is None


def test_operators_are_timed_on_other_sizes_than_are_measured() -> None:
    import predict_cases

    for model in predict_cases.MODELS.values():
        for size in model.timed:
            assert size.hidden != model.measured.hidden
            assert size.sequence != model.measured.sequence
    for network in predict_cases.NETWORKS:
        assert network.ranks in predict_cases.PLANS


def test_kendall_tau() -> None:
    from plan_table import kendall_tau

    assert kendall_tau([(1, 1), (2, 2), (3, 3)]) == 1
    assert kendall_tau([(1, 3), (2, 2), (3, 1)]) == -1
    assert kendall_tau([(1, 1), (1, 2), (2, 3)]) == pytest.approx(2 / (2 * 3) ** 0.5)
    assert kendall_tau([(1, 1), (1, 2)]) == 0


def test_the_page_of_architectures_says_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER / "architectures"))
    from page import page

    share = {"flops": 0.999, "stored": 1.0, "used": 0.5, "whole flops": ["embedding"]}
    both = {axis: {**share, "whole parameters": ["head.weight"]} for axis in "xy"}
    rules = {"declared": 0.9474, "none": 0.0526}
    trained = {
        "name": "trained",
        "capture": {"seconds": 0.65, "nodes": 82, "operators": 19, "rules": rules}
        | {"without rule": ["arange"]},
        "plan": {"seconds": 2.09},
        "free": both,
        "weights": both,
        "step": {"worst": 4e-16, "plans": 6, "steps": 3},
    }
    broken = {"name": "broken", "capture": {"status": "failed", "error": "CaptureError:\n why"}}
    made = {"date": "today", "machine": "2 cores", "mesh": "2x2", "hardware": "cpu"}
    written = page({**made, "results": [trained, broken]})
    row = "| trained | 82 | 19 | 94% | 0% | 5% | 99% | 99% | 100% | 50% | 0.7 s | 2.1 s | 4e-16 |"
    assert row in written and "under 6 plans" in written
    assert "- trained, parameters on y (50%): `head.weight`" in written
    assert "- `arange`: trained" in written and "- broken, capture: CaptureError: why" in written


def test_what_an_architecture_leaves_whole_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER / "architectures"))
    import measures

    case = parity.reference("mlp")
    plan = Plan.from_json(parity.preset_work("mlp", (2,), "megatron").plan)
    share = measures.split(plan, case.graph)["x"]
    assert share["used"] < 1 and "norm.weight in layer_norm" in share["whole parameters"]
    assert share["flops"] == plan.shares[0].flops or share["whole flops"]
    told = measures.operators(case.graph)
    assert sum(told["rules"].values()) == pytest.approx(1.0, abs=1e-3)
