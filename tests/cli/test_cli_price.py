"""`autopar price` and `autopar export` as a person runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autopar.plans.plan import Plan
from autopar.request.configurations.tool import read_file
from tests.cli.commands import fails, ok

GOOD = "tests.cli.factories:good"
GPT = "tests.cli.factories:gpt"
GIVEN = ("price", GPT, "--hardware", "h100")
MEGATRON = "--tensor-model-parallel-size 2\n--micro-batch-size 4\n--tp-comm-overlap\n"


@pytest.mark.thorough
def test_a_configuration_beside_the_choice(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    words = ("--tp", 2, "--dp", 2, "--zero", 1, "-o", path)
    said = ok("price", GOOD, "--hardware", "h100", *words)
    assert "MLP on 4 devices of h100, 8 samples in 1 microbatch" in said
    assert "tp 2, pp 1, dp 2, ZeRO-1, microbatches of 4 on each rank" in said
    assert "autopar's choice: no stages, mesh device=4" in said and f"wrote {path}" in said
    assert "autopar's choice is " in said
    assert Plan.load(path).preset == "zero2_megatron"


FIGURES = ("step_s", "peak_nbytes", "bubble", "tokens_per_s", "mfu")


@pytest.mark.thorough
def test_figures_for_programs() -> None:
    found = json.loads(ok(*GIVEN, "--dp", 2, "--microbatch", 2, "--json", "--only"))
    assert all(isinstance(found[name], float) for name in FIGURES)
    assert found["step_s"] > 0 and found["bubble"] == 0 and 0 < found["mfu"] < 1
    assert found["configuration"]["accumulation"] == 2 and found["fits"] is True
    assert "choice" not in found


@pytest.mark.slow
def test_figures_of_the_choice() -> None:
    found = json.loads(ok(*GIVEN, "--tp", 2, "--dp", 2, "--microbatch", 2, "--json"))
    assert all(isinstance(found["choice"][name], float) for name in FIGURES)
    assert found["choice"]["step_s"] <= found["step_s"]


def test_a_file_and_flags_beside_it(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(MEGATRON)
    given = ("price", GOOD, "--hardware", "h100", "--config", tmp_path / "run.sh")
    words = (*given, "--dp", 2, "--json", "--only")
    found = json.loads(ok(*words))
    assert found["configuration"]["tp"] == 2 and found["configuration"]["microbatch"] == 4
    assert any("--tp-comm-overlap is left out" in said for said in found["said"])
    assert json.loads(ok(*words, "--tp", 1))["configuration"]["tp"] == 1
    assert found["tokens_per_s"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--ep", 4, "--dp", 2), "--ep 4 does not divide the 2 ranks of data and context"),
        (("--tp", 2), "is not stated: pass --dp or --devices"),
        (("--dp", 2, "--batch", 16), "--batch 16: the model's example inputs have 8 samples"),
        (("--dp", 1, "--pp", 2, "--layers", "a"), "Cannot read --layers 'a': write the number"),
        (("--dp", 1, "--pp", 2, "--vp", 2, "--schedule", "1f1b"), "--vp 2: 1f1b has one stage"),
        (("--dp", 1, "--recompute", "some"), "--recompute some is unknown: pass none, attention"),
        (("--dp", 1, "--config", "none.sh"), "Cannot read the configuration none.sh"),
    ],
)
def test_what_is_refused(words: tuple[object, ...], said: str) -> None:
    assert said in fails(*GIVEN, *words)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "plan.json"
    words = ("--tp", 2, "--pp", 2, "--dp", 2, "--microbatch", 1, "--zero", 1, "--only", "-o", path)
    ok(*GIVEN, *words)
    return path


@pytest.mark.slow
def test_a_plan_is_written_for_another_tool(plan: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    said = ok("export", plan, "--to", "megatron", "-o", path)
    assert "AdamW is one fused kernel there." in said and f"wrote {path}" in said
    found = read_file(path).configuration
    assert (found.tp, found.pp, found.devices, found.zero) == (2, 2, 8, 1)
    printed = ok("export", plan, "--to", "megatron")
    assert printed == path.read_text()
    content = json.loads(ok("export", plan, "--to", "deepspeed", "--json"))
    assert json.loads(content["text"])["pipeline"] == {"stages": 2} and content["said"]


def test_an_export_that_is_none(plan: Path, tmp_path: Path) -> None:
    assert "No tool is called 'megatro'. Did you mean 'megatron'" in fails(
        "export", plan, "--to", "megatro"
    )
    assert "would overwrite" in fails("export", plan, "--to", "megatron", "-o", plan)
    (tmp_path / "a.json").write_text("{}")
    assert "not an autopar plan" in fails("export", tmp_path / "a.json", "--to", "megatron")
