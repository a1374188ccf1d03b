"""``--json``: what every command prints can be read by a program, and is what it prints for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autopar.plans.plan import Plan
from autopar.request import presets
from tests.cli.commands import ok, run

MODEL = "tests/cli/factories.py:good"
ON = ("--mesh", "2", "--hardware", "cpu")


def values(*words: object) -> Any:
    return json.loads(ok(*words, "--json"))


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any]:
    """A plan's file, its problem's, and what was printed."""
    folder = tmp_path_factory.mktemp("json")
    path, problem = folder / "plan.json", folder / "problem.json"
    printed = values("plan", MODEL, *ON, "-o", path, "--problem", problem)
    return path, problem, printed


def figure(outline: Any, name: str) -> float:
    (found,) = (each["value"] for each in outline["figures"] if each["name"] == name)
    return float(found)


def test_plan(planned: tuple[Path, Path, Any]) -> None:
    path, _, printed = planned
    plan = Plan.load(path)
    assert printed["written"] == str(path) and printed["digest"] == plan.digest
    assert printed == values("show", path) | {"written": str(path)}


def test_emit(planned: tuple[Path, Path, Any], tmp_path: Path) -> None:
    (written,) = values("emit", planned[0], MODEL, "-o", tmp_path)["written"]
    assert "def forward" in Path(written).read_text()


def test_verify(planned: tuple[Path, Path, Any], tmp_path: Path) -> None:
    found = values("verify", planned[0], MODEL)
    assert all(check["ok"] for check in found["checks"])
    assert {each["kind"] for each in found["statements"]} <= {"agrees", "silent"}
    content = json.loads(planned[0].read_text())
    content["estimate"]["compute_s"] *= 2
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(content))
    refused = run("verify", wrong, MODEL, "--no-bound", "--json")
    assert refused.exit_code == 1 and "refused" in refused.stderr
    said = json.loads(refused.stdout)
    assert not all(check["ok"] for check in said["checks"]) and said["statements"] == []


def test_explain(planned: tuple[Path, Path, Any]) -> None:
    path = planned[0]
    name = next(iter(Plan.load(path).parameter))
    found = values("explain", path, MODEL, name)
    assert found["name"] == name and found["sentence"].startswith(f"{name} is ")
    chosen, *others = found["alternatives"]
    assert chosen["is_chosen"] and chosen["more_s"] == 0.0
    assert chosen["digest"] == Plan.load(path).digest
    made = [each for each in others if each["digest"] is not None]
    assert made and all(each["difference"]["before"] == chosen["digest"] for each in made)
    assert all("plan" not in each for each in found["alternatives"])


def test_solve(planned: tuple[Path, Path, Any]) -> None:
    found = values("solve", planned[1])
    assert found["bound_s"] == pytest.approx(found["seconds"])
    assert set(found["states"]) and all(state >= 0 for state in found["states"].values())
    assert values("solve", planned[1], "--ilp")["seconds"] == pytest.approx(found["seconds"])


def test_frontier(tmp_path: Path) -> None:
    found = values("frontier", MODEL, *ON, "-o", tmp_path)
    assert found["written"] == str(tmp_path)
    assert {each["digest"] for each in found["plans"]} == {p.stem for p in tmp_path.glob("*.json")}


def test_map() -> None:
    printed = run("map", MODEL, *ON, "--batches", "8", "--memories", "1KiB,1GiB", "--json")
    small, large = json.loads(printed.stdout)["points"][::-1]
    assert small["plan"] is None and small["smallest_nbytes"] > small["limit_nbytes"] == 1024
    assert large["plan"]["digest"] and large["smallest_nbytes"] is None


def test_presets() -> None:
    assert set(values("presets")) == set(presets.names())


def test_report(planned: tuple[Path, Path, Any], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    found = values("report", planned[0], "-o", page)
    assert found == {"written": str(page), "nbytes": page.stat().st_size}
