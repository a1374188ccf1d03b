"""What flags mean: each reaches what it speaks of, as what it says; and some are seen to do it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autopar.errors import InputError
from autopar.ir.mesh import Mesh
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from cost_models.hardware import load, to_text
from tests.cli.commands import fails, ok, run

GOOD = "tests.cli.factories:good"
GPT = "tests.cli.factories:gpt"
PLANNED = "plan.compile_model"
STAGED = "plan.compile_staged"
COMPARED = "compare.compare"
CURVE = "frontier.plan_frontier"
MAPPED = "map.plan_landscape"
TIMED = "profile.profile"
TIMED_STAGES = "profile.compile_staged"
RAN = "traced.Run"


class Stop(InputError):
    """Nothing is computed: what the command asked for is enough."""


def reached(words: tuple[str, ...], where: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a function of the library is called with, by name; () holds those without."""
    module, _, name = where.rpartition(".")
    got: dict[str, Any] = {}

    def stands_in(*given: Any, **named: Any) -> None:
        got.update(named, **{"()": given})
        raise Stop("that will do")

    place = importlib.import_module(f"autopar.cli.{module}")
    monkeypatch.setattr(place, name, stands_in)
    result = run(*words)
    assert "that will do" in result.stderr, result.output
    return got


PLAN = ("plan", GOOD, "--hardware", "h100", "-o", "never.json")
ON = (*PLAN, "--mesh", "2")
COMPARE = ("compare", GOOD, "--mesh", "2", "--hardware", "h100")
MAP = ("map", GOOD, "--mesh", "2", "--batches", "8,4", "--memories", "1GiB")
STAGE = ("plan", GPT, "--mesh", "4", "--hardware", "cpu", "-o", "never.json", "--stages")


@pytest.mark.parametrize(
    ("words", "where", "name", "value"),
    [
        ((*PLAN, "--devices", "4"), PLANNED, 1, 4),
        ((*PLAN, "--devices", "4", "--axes", "1"), PLANNED, 1, (Mesh.of(4),)),
        ((*ON, "--preset", "ddp"), PLANNED, "preset", "ddp"),
        ((*ON, "--optimizer", "SGD"), PLANNED, "optimizer", "SGD"),
        ((*ON, "--memory", "1GiB"), PLANNED, "memory_limit", 2.0**30),
        ((*ON, "--recompute", "full"), PLANNED, "recompute", "full"),
        ((*ON, "--database", "t.sqlite"), PLANNED, "planning.database", Path("t.sqlite")),
        ((*STAGE, "2"), STAGED, "pipeline.stages", 2),
        ((*STAGE, "1+3"), STAGED, "pipeline.stages", [(1,), (3,)]),
        ((*STAGE, "2", "--schedule", "zb-h1"), STAGED, "pipeline.schedule", "zb-h1"),
        ((*STAGE, "2", "--microbatches", "4"), STAGED, "pipeline.microbatches", 4),
        ((*STAGE, "2", "--cut", "a", "--cut", "b"), STAGED, "pipeline.cuts", ("a", "b")),
        ((*STAGE, "2", "--asynchronous"), STAGED, "pipeline.asynchronous", True),
        ((*COMPARE, "--preset", "ddp", "--preset", "fsdp"), COMPARED, "names", ("ddp", "fsdp")),
        ((*COMPARE, "--optimizer", "SGD"), COMPARED, "optimizer", "SGD"),
        ((*COMPARE, "--precision", "bfloat16"), COMPARED, "precision", "bfloat16"),
        ((*COMPARE, "--memory", "1GiB"), COMPARED, "memory_limit", "1GiB"),
        ((*COMPARE, "--database", "t.sqlite"), COMPARED, "planning.database", Path("t.sqlite")),
        (("frontier", GOOD, "--mesh", "2", "--database", "t"), CURVE, "planning.database", Path("t")),
        (("frontier", GOOD, "--mesh", "2", "--optimizer", "SGD"), CURVE, "optimizer", "SGD"),
        (
            ("frontier", GOOD, "--mesh", "2", "--precision", "bfloat16"),
            CURVE, "precision", "bfloat16",
        ),
        (MAP, MAPPED, "batches", (4, 8)),
        (MAP, MAPPED, "memories", (2.0**30,)),
        ((*MAP, "--optimizer", "SGD"), MAPPED, "optimizer", "SGD"),
        ((*MAP, "--precision", "bfloat16"), MAPPED, "precision", "bfloat16"),
        ((*MAP, "--database", "t"), MAPPED, "planning.database", Path("t")),
        (("profile", GOOD, "--mesh", "2", "--all"), TIMED, "every", True),
        (("profile", GPT, "--mesh", "2", "--stages", "2"), TIMED_STAGES, "pipeline.stages", 2),
        (
            ("profile", GPT, "--mesh", "2", "--stages", "2", "--microbatches", "4"),
            TIMED_STAGES, "pipeline.microbatches", 4,
        ),
        (
            ("profile", GPT, "--mesh", "2", "--stages", "2", "--schedule", "gpipe"),
            TIMED_STAGES, "pipeline.schedule", "gpipe",
        ),
        (
            ("profile", GPT, "--mesh", "2", "--stages", "2", "--cut", "a"),
            TIMED_STAGES, "pipeline.cuts", ("a",),
        ),
        (
            ("profile", GPT, "--mesh", "2", "--stages", "2", "--precision", "bfloat16"),
            TIMED_STAGES, "precision", "bfloat16",
        ),
        (
            ("profile", GPT, "--mesh", "2", "--stages", "2", "--memory", "1GiB"),
            TIMED_STAGES, "memory_limit", "1GiB",
        ),
        (("profile", GOOD, "--mesh", "2", "--run", "--steps", "7"), RAN, 3, 7),
    ],
)  # fmt: skip
def test_a_flag_reaches(
    words: tuple[str, ...], where: str, name: str | int, value: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    got = reached(words, where, monkeypatch)
    if isinstance(name, int):
        assert got["()"][name] == value
        return
    argument, _, field = name.partition(".")
    assert (getattr(got[argument], field) if field else got[argument]) == value


def test_how_operators_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("profile", GOOD, "--mesh", "2", "--threads", "3", "--again", "--database", "t.sqlite")
    timing = reached(words, TIMED, monkeypatch)["()"][2]
    assert (timing.setting.threads, timing.again, timing.database) == (3, True, Path("t.sqlite"))


def test_what_is_asked_of_the_model_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, command in {
        "profile": "profile.captured_by", "rules": "rules.captured_graph",
    }.items():  # fmt: skip
        words = ("--mesh", "2") if name == "profile" else ("--model",)
        given = (name, GOOD, *words) if name == "profile" else (name, *words, GOOD)
        assert type(reached(given, command, monkeypatch)["()"][0]).__name__ == "MLP"


def test_profile_refuses_what_stages_have_not() -> None:
    words = ("profile", GPT, "--mesh", "2", "--stages", "2")
    assert "--run applies to plans without stages" in run(*words, "--run").stderr
    assert "--all applies to plans without stages" in run(*words, "--all").stderr
    assert (
        "applies to stages only" in run("profile", GPT, "--mesh", "2", "--microbatches", "2").stderr
    )


@pytest.mark.parametrize("flag", ["--output p.json", "--threads 2", "--all", "--again"])
def test_profile_refuses_what_a_run_has_not(flag: str) -> None:
    said = fails("profile", GOOD, "--mesh", "2", "--run", *flag.split())
    assert f"error: {flag.split()[0]} is for timing operators, which --run does not do" in said


def test_profile_refuses_steps_that_nobody_runs() -> None:
    assert "--steps applies to --run only" in fails("profile", GOOD, "--mesh", "2", "--steps", "3")


@pytest.mark.thorough
def test_a_cut_is_where_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    ok("plan", GPT, "--mesh", "2", "--hardware", "cpu", "--stages", "2", "--microbatches", "2",
       "--cut", "ln_1_1", "-o", path)  # fmt: skip
    assert PipelinePlan.load(path).cuts == ("ln_1_1",)


def test_rows_are_alternatives(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    ok("plan", GOOD, "--mesh", "2", "--hardware", "h100", "-o", path)
    made = []
    for rows in (1, 3):
        said = json.loads(ok("explain", path, GOOD, "up/linear", "--rows", rows, "--json"))
        made.append(sum(each["digest"] is not None for each in said["alternatives"]))
    assert made[1] == made[0] + 2


def test_recompute_decides_for_all_blocks(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    words = ("plan", GPT, "--mesh", "2", "--hardware", "h100", "-o", path, "--recompute")
    for mode in ("full", "none"):
        ok(*words, mode)
        modes = {block.recompute for block in Plan.load(path).recompute}
        assert modes == ({"full"} if mode == "full" else set())


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A profile of the user's, and a plan that was priced by it."""
    folder = tmp_path_factory.mktemp("mine")
    profile, path = folder / "mine.toml", folder / "plan.json"
    h100 = load("h100")
    profile.write_text(to_text(replace(h100, device=replace(h100.device, name="mine"))))
    ok("plan", GOOD, "--mesh", "2", "--hardware", profile, "--preset", "ddp", "-o", path)
    return profile, path


def test_a_profile_of_the_users_is_named(mine: tuple[Path, Path], tmp_path: Path) -> None:
    """Without its file nothing can be priced anew; another's figures are refused."""
    profile, path = mine
    page = tmp_path / "page.html"
    for words in (
        ("explain", path, GOOD, "up/linear", "--rows", "1"),
        ("simulate", path, "--bandwidth", "x=0.5x"),
        ("report", path, "-o", page, "--model", GOOD),
    ):
        assert "mine" in fails(*words)
        assert ok(*words, "--hardware", profile)
    assert page.read_text().count("roofline-chart")
    assert "priced for" in fails("simulate", path, "--hardware", "a100")
    assert "priced for" in fails("report", path, "-o", page, "--hardware", "a100")


def test_a_slower_link_of_a_profile_of_the_users(mine: tuple[Path, Path]) -> None:
    profile, path = mine
    words = ("simulate", path, "--hardware", profile, "--json")
    planned, slower = (
        json.loads(ok(*words, *more))["step_s"] for more in ((), ("--bandwidth", "x=0.1x"))
    )
    assert slower > planned


@pytest.mark.parametrize("command", ["explain", "report"])
def test_what_explains_a_plan_is_told_its_prices(
    command: str, mine: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    profile, path = mine
    page = path.with_suffix(".html")
    words = {
        "explain": (path, GOOD, "up/linear"),
        "report": (path, "-o", page, "--model", GOOD, "--explain", "up/linear"),
    }[command]
    given = (command, *map(str, words), "--hardware", str(profile), "--database", "t.sqlite")
    got = reached(given, f"{command}.explained_of", monkeypatch)["()"]
    assert got[2:5] == ("up/linear", str(profile), Path("t.sqlite"))


def test_what_a_profiled_plan_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("profile", GOOD, "--mesh", "2", "--preset", "ddp", "--precision", "bfloat16")
    asked = reached((*words, "--memory", "1GiB"), "profile.captured_by", monkeypatch)["()"][4]
    assert (asked.preset, str(asked.precision), asked.memory_limit) == ("ddp", "bfloat16", 2.0**30)


@pytest.mark.thorough
def test_a_preset_is_profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plan alone, and that is what comes out; no operator has to be timed for that."""
    asked: list[int] = []

    def measure(pairs: Sequence[Any], *_: object) -> tuple[list[Any], list[Any]]:
        asked.append(len(pairs))
        return [], []

    monkeypatch.setattr("autopar.profile.profiled_plan.measure", measure)
    path, database = tmp_path / "plan.json", tmp_path / "times.sqlite"
    words = ("profile", GOOD, "--mesh", "2", "--hardware", "cpu", "--database", database)
    ok(*words, "--preset", "ddp", "-o", path)
    assert Plan.load(path).preset == "ddp"
    alone = asked[0]
    asked.clear()
    ok(*words)
    assert 0 < alone < asked[0]
