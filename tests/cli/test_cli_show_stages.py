"""``autopar show pipeline.json MODEL``: a block or a tensor with its stage, of the stage's graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pytest

from tests.cli.commands import fails, ok

MODEL = "tests.cli.factories:gpt"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GPT-2 in two stages, cut between its layers, an operator of the second pinned."""
    made = tmp_path_factory.mktemp("stages") / "plan.json"
    flags = ("--stages", "2", "--schedule", "1f1b", "--microbatches", "2", "--cut", "ln_1_1")
    pinned = ("--constraint", "transformer.h.1.mlp.c_fc/addmm=[S(0)]")
    ok("plan", MODEL, "--mesh", "4", "--hardware", "cpu", *flags, *pinned, "-o", made)
    return made


@pytest.fixture(autouse=True)
def nothing_is_emitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """To show a plan no code has to be written."""

    def emits(*_: object) -> NoReturn:
        raise AssertionError("show emits code")

    monkeypatch.setattr("autopar.cli.stages.emit", emits)


def test_a_block_is_shown_with_its_operators(path: Path) -> None:
    said = ok("show", path, MODEL, "--block", "transformer.h.1.mlp")
    assert said.startswith("stage 1 of 2\n") and "Pass the MODEL" not in said
    assert "c_proj/addmm" in said and "c_fc/addmm ◆" in " ".join(said.split())
    alone = ok("show", path, "--block", "transformer.h.1.mlp")
    assert alone.startswith("stage 1 of 2\n") and "Pass the MODEL" in alone
    found = json.loads(ok("show", path, MODEL, "--block", "transformer.h.1.mlp", "--json"))
    assert found["stage"] == 1 and found["operators"]


@pytest.mark.thorough
def test_a_block_without_parameters(path: Path) -> None:
    said = ok("show", path, MODEL, "--block", "transformer.h.1.mlp.act")
    assert said.startswith("stage 1 of 2\n") and "act/" in said
    assert "No stage has" in fails("show", path, "--block", "transformer.h.1.mlp.act")


def test_a_tensor_is_shown_with_its_stage(path: Path) -> None:
    said = ok("show", path, "--tensor", "h.1.mlp.c_fc.weight")
    assert said.startswith("stage 1 of 2\n") and "transformer.h.1.mlp.c_fc.weight" in said
    found = json.loads(ok("show", path, "--tensor", "h.1.mlp.c_fc.weight", "--json"))
    assert found["stage"] == 1 and found["name"] == "transformer.h.1.mlp.c_fc.weight"


def test_what_another_stage_has_is_named(path: Path) -> None:
    for flag, name in (("--tensor", "h.1.mlp.c_fc.weight"), ("--block", "transformer.h.1")):
        message = fails("show", path, "--stage", "0", flag, name)
        assert f"Stage 0 has no {name!r}: look in stage 1." in message
        assert ok("show", path, "--stage", "1", flag, name)


def test_what_several_stages_have_is_refused(path: Path) -> None:
    assert "Stages 0, 1 all have a 'transformer': say which with --stage" in fails(
        "show", path, MODEL, "--block", "transformer"
    )
    assert "Stages 0, 1 all have a 'c_fc.weight'" in fails("show", path, "--tensor", "c_fc.weight")
    first = ok("show", path, MODEL, "--block", "transformer.*", "--stage", "0")
    assert "mlp.c_proj/addmm" in first and "h.1" not in first
    assert "not both" in fails("show", path, "--block", "a", "--tensor", "b")


def test_marks_of_all_stages(path: Path) -> None:
    words = " ".join(ok("show", path, MODEL).split())
    assert "transformer.h.1.mlp.c_fc/addmm ◆ 1 S(0)" in words
    assert "constraints tensor 'transformer.h.1.mlp.c_fc/addmm' on x: S(0)" in words
