"""``report --measured``: a measured step is taken for the plan whose step it is, and for no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autopar.plans.identity import Identity
from autopar.plans.plan import Plan
from autopar.profile.traced_step import Beside
from tests.cli.commands import fails, ok
from tests.render.text import hand_made

NONE = "0" * 12
Refused = Callable[[Any], str]


def step_of(plan: Plan) -> Beside:
    """What `profile --run` might have found of the plan."""
    return Beside(
        Identity.of(plan), plan.digest, plan.estimate.step_s, 1.0, 1.1, 0.01, 0.02, (), ()
    )


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(hand_made.plan().to_json())
    return path


@pytest.fixture
def refused(plan: Path, tmp_path: Path) -> Refused:
    """The message about a measured step of such content; no page is written."""

    def refuse(content: Any) -> str:
        step, page = tmp_path / "step.json", tmp_path / "page.html"
        step.write_text(content if isinstance(content, str) else json.dumps(content))
        message = fails("report", plan, "-o", page, "--measured", step)
        assert not page.exists()
        return message

    return refuse


def content() -> dict[str, Any]:
    """The plan's own step, as JSON has it."""
    return step_of(hand_made.plan()).to_dict()


def test_the_plans_own_is_shown(plan: Path, tmp_path: Path) -> None:
    step, page = tmp_path / "step.json", tmp_path / "page.html"
    step.write_text(json.dumps(content()))
    ok("report", plan, "-o", page, "--measured", step)
    assert "The step took 1.0 s" in page.read_text()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("model", "BigLM", "model: BigLM, the plan's TinyLM"),
        ("graph", NONE, f"graph {NONE}, the plan's 0123456789ab"),
        ("mesh", "x=8", "mesh: x=8, the plan's x=2, y=4"),
        ("hardware", "cpu (1)", "hardware: cpu (1), the plan's h100 ()"),
        ("precision", "bfloat16", "precision: bfloat16, the plan's float32"),
        ("optimizer", "SGD", "optimizer: SGD, the plan's AdamW"),
        ("times", "measured", "operator times: measured, the plan's modelled"),
    ],
)
def test_what_was_priced_differs(name: str, value: str, said: str, refused: Refused) -> None:
    step = content()
    step["of"][name] = value
    message = refused(step)
    assert "step.json measures another plan: - " in message and said in message
    assert message.count("the plan's ") == 1, "this differs, and nothing else does"
    assert "autopar profile MODEL --mesh 'x=2, y=4' --hardware h100 --run --json" in message


def test_what_was_decided_differs(refused: Refused) -> None:
    digest = hand_made.plan().digest
    assert f"decisions: {NONE}, the plan's {digest}" in refused(content() | {"plan": NONE})


def test_what_was_predicted_differs(refused: Refused) -> None:
    assert "predicted step: 0.5 s, the plan's " in refused(content() | {"predicted_step_s": 0.5})


def test_steps_of_other_autopars_are_refused(refused: Refused) -> None:
    old = {name: value for name, value in content().items() if name != "schema"}
    assert "is a measured step of schema 1; this autopar reads 2. Measure" in refused(old)
    assert "of schema 9" in refused(content() | {"schema": 9})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("measured_step_s", 0.0), ("measured_step_s", float("inf")), ("measured_step_s", -1.0),
        ("traced_step_s", float("nan")), ("measured_update_s", -1.0),
    ],
)  # fmt: skip
def test_figures_are_seconds(name: str, value: float, refused: Refused) -> None:
    assert f"is not a measured step: {name}: Input should be" in refused(content() | {name: value})


@pytest.mark.parametrize("text", ["{", "[]", "7", "null", "{}"])
def test_other_files_are_refused(text: str, refused: Refused) -> None:
    assert "is not a measured step: " in refused(text)


def test_pipelines_have_no_measured_steps(plan: Path, tmp_path: Path) -> None:
    pipeline, step = tmp_path / "pipeline.json", tmp_path / "step.json"
    pipeline.write_text(hand_made.pipeline().to_json())
    words = ("-o", tmp_path / "page.html", "--measured", step)
    assert "runs no pipelines" in fails("report", pipeline, *words)
    assert "Cannot read the measured step" in fails("report", plan, *words)
