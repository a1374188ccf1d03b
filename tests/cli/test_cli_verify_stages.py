"""``autopar verify`` of a pipeline: all in its plan is computed again, and what is wrong is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autopar.plans.pipeline_plan import PipelinePlan
from tests.cli.commands import fails, ok, run

GPT = "tests.cli.factories:gpt"
Content = dict[str, Any]


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stages") / "plan.json"
    ok("plan", GPT, "--mesh", "4", "--hardware", "cpu", "--stages", "2+2", "--schedule",
       "zb-v", "--microbatches", "4", "-o", path)  # fmt: skip
    return path


def refused(path: Path, *words: object) -> str:
    """What the command says, on one line; there is no traceback."""
    return fails("verify", path, GPT, "--no-bound", *words)


@pytest.mark.slow
def test_a_limit_is_of_the_microbatches_in_flight(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    ok("plan", GPT, "--mesh", "4", "--hardware", "h100", "--stages", "2", "--schedule", "1f1b",
       "--microbatches", "4", "--memory", "400KiB", "-o", path)  # fmt: skip
    first = PipelinePlan.load(path).stages[0].plan
    assert first.bound_nbytes is not None, "the limit binds where two are in flight"
    assert "proved again" in ok("verify", path, GPT)


@pytest.mark.thorough
def test_every_check_holds(plan_file: Path) -> None:
    result = run("verify", plan_file, GPT)
    assert result.exit_code == 0, result.output
    assert "FAILS" not in result.stdout and "contradicts" in result.stdout
    for name in (
        "cuts",
        "schedule",
        "stage 0: bound",
        "stage 3: objective",
        "in flight",
        "prediction",
    ):
        assert name in result.stdout, name
    assert "not proved again" in run("verify", plan_file, GPT, "--no-bound").stdout


def lies(plan: Content) -> None:
    plan["prediction"]["step_s"] *= 1.01


def no_cut(plan: Content) -> None:
    plan["cuts"][0] = "nowhere"


def swapped(plan: Content) -> None:
    plan["actions"] = plan["actions"].replace("0F0 ", "0F9 ", 1).replace("0F1 ", "0F0 ", 1)


def unreadable(plan: Content) -> None:
    plan["actions"] = plan["actions"].replace("0F0", "0X0", 1)


def twice(plan: Content) -> None:
    plan["workers"][1]["ranks"] = [0, 1]


def missing(plan: Content) -> None:
    del plan["stages"][2]


def ninth(plan: Content) -> None:
    plan["stages"][2] = {**plan["stages"][2], "stage": 9}
    plan["stages"].append({**plan["stages"][2], "stage": 2})


def doubled(plan: Content) -> None:
    plan["stages"].append(plan["stages"][0])


def other_mesh(plan: Content) -> None:
    plan["workers"][1]["mesh"] = "y=2"


def estimate(plan: Content) -> None:
    plan["stages"][1]["plan"]["estimate"]["compute_s"] *= 2


def figures(plan: Content) -> None:
    plan["prediction"]["stages"][0]["in_flight"] = 1


def fewer(plan: Content) -> None:
    plan["prediction"]["stages"] = plan["prediction"]["stages"][:1]


def limit(plan: Content) -> None:
    plan["stages"][0]["plan"]["asked"]["memory_limit"] = 1.0


def together(plan: Content) -> None:
    plan["memory_limit"] = 1000.0


def three(plan: Content) -> None:
    plan["microbatches"] = 3


def empty(plan: Content) -> None:
    plan["stages"] = []


def profile(plan: Content) -> None:
    plan["hardware_digest"] = "0" * 12


def device(plan: Content) -> None:
    plan["hardware"] = "abacus"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lies, "- prediction: step_s is"),
        (no_cut, "- cuts: GPT2LMHeadModel has no operator 'nowhere'"),
        (swapped, "- schedule: zb-v, worker 0, position"),
        (unreadable, "is not a pipeline's plan: Cannot read the action '0X0'"),
        (twice, "The workers' ranks [0, 0, 1, 1] are not the 4"),
        (missing, "There is no plan of stage 2 on worker 1"),
        (ninth, "There is a plan of stage 9 on worker 1"),
        (doubled, "There are 5 stages' plans for 4 places"),
        (other_mesh, "The plan of stage 1 on worker 1 is of the mesh (x=2); the worker's"),
        (estimate, "- stage 1: estimate: compute_s is"),
        (figures, "- in flight: in_flight of stage 0 is 1 in the plan; computed again it is"),
        (fewer, "prediction.stages are of (stage, worker) [(0, 0)], not"),
        (limit, "- stage 0: memory: memory_limit is 1.0 bytes in the plan"),
        (together, "- workers' memory: memory_limit is 1000.0 bytes in the plan; worker 0 needs"),
        (three, "The schedule has 4 microbatches in 1 batches; the plan's batch has 3"),
        (empty, "The plan has no stages"),
        (profile, "- hardware: hardware_digest is 000000000000 in the plan"),
        (device, "Pass the profile's file with --hardware"),
    ],
)
def test_what_is_wrong_is_named(
    plan_file: Path, tmp_path: Path, change: Callable[[Content], None], said: str
) -> None:
    content = json.loads(plan_file.read_text())
    change(content)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(content))
    assert said in refused(path)


@pytest.mark.thorough
def test_another_batch(plan_file: Path) -> None:
    six = fails("verify", plan_file, f"{GPT}_of_six", "--no-bound")
    assert "into 4 equal microbatches, but 6 samples cannot be divided so" in six
    smaller = fails("verify", plan_file, f"{GPT}_of_four", "--no-bound")
    assert "The plan is not of this model and batch: - graph" in smaller


def test_another_model_and_another_machine(plan_file: Path) -> None:
    other = run("verify", plan_file, "tests/cli/factories.py:good")
    assert other.exit_code == 1 and "Traceback" not in other.output
    assert "- hardware: hardware is cpu in the plan" in refused(plan_file, "--hardware", "h100")


def test_no_figures_are_nothing_to_check(plan_file: Path, tmp_path: Path) -> None:
    content = json.loads(plan_file.read_text())
    content["prediction"] = None
    (tmp_path / "bare.json").write_text(json.dumps(content))
    result = run("verify", tmp_path / "bare.json", GPT, "--no-bound")
    assert result.exit_code == 0 and "prediction" not in result.stdout
    assert PipelinePlan.load(tmp_path / "bare.json").prediction is None
