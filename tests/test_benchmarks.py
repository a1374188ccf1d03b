"""What the benchmark of all plans counts and ranks, without running a plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autopar.plans.plan import Plan
from autopar.solve import solve
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


def test_kendall_tau() -> None:
    from plan_table import kendall_tau

    assert kendall_tau([(1, 1), (2, 2), (3, 3)]) == 1
    assert kendall_tau([(1, 3), (2, 2), (3, 1)]) == -1
    assert kendall_tau([(1, 1), (1, 2), (2, 3)]) == pytest.approx(2 / (2 * 3) ** 0.5)
    assert kendall_tau([(1, 1), (1, 2)]) == 0


def test_the_page_of_architectures_is_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row is edited by hand, every architecture has one, and no local path is in it."""
    monkeypatch.syspath_prepend(str(FOLDER / "architectures"))
    from page import page

    from tests.architectures import ARCHITECTURES

    found = json.loads((FOLDER / "architectures.json").read_text())
    written = (FOLDER.parent / "docs" / "architectures.md").read_text()
    assert written == page(found)
    assert [entry["name"] for entry in found["results"]] == list(ARCHITECTURES)
    assert "site-packages" not in written and str(FOLDER.parent) not in written


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
