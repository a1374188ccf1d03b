"""The commands that look inside of plans: what they print, as text and as JSON, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from autopar.cli import app
from autopar.cli.examples import EXAMPLES
from autopar.plans.beside import Beside
from tests.cli.commands import fails, ok, run
from tests.show import hand_made

FACTORIES = "tests/cli/factories.py"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Plans written by hand."""
    folder = tmp_path_factory.mktemp("plans")
    made = {
        "one": hand_made.plan(), "other": hand_made.other(), "pipe": hand_made.pipeline(),
        "longer": hand_made.pipeline(3, 8),
    }  # fmt: skip
    for name, plan in made.items():
        (folder / f"{name}.json").write_text(plan.to_json())
    return {name: folder / f"{name}.json" for name in made}


def test_every_command_shows_an_example() -> None:
    group = typer.main.get_command(app)
    assert set(group.commands) == set(EXAMPLES)  # type: ignore[attr-defined]
    for name, example in EXAMPLES.items():
        words = " ".join(ok(name, "--help").split())
        assert example in words, name


def test_diff(files: dict[str, Path]) -> None:
    text = ok("diff", files["one"], files["other"])
    assert "TinyLM: a step of the second plan is" in text and "model.layers.0 ... 5" in text
    found = json.loads(ok("diff", files["one"], files["other"], "--json"))
    assert found["model"] == "TinyLM"
    assert {"subject", "name", "what", "before", "after"} == set(found["changes"][0])
    assert "stage" in ok("diff", files["pipe"], files["longer"])


def test_diff_refuses(files: dict[str, Path], tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    assert "is not an autopar plan" in fails("diff", files["one"], bad)
    assert "Cannot read the plan" in fails("diff", files["one"], tmp_path / "none.json")
    assert "plans of two models" in fails("diff", files["one"], files["pipe"])


@pytest.mark.parametrize("command", ["show", "simulate", "report", "diff"])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"mesh": "x=8"}, "but the mesh (x=8) has 1 axes"),
        ({"schema": None}, "has plan schema None"),
    ],
)
def test_plans_that_contradict_themselves(
    command: str, wrong: dict[str, object], said: str, files: dict[str, Path], tmp_path: Path
) -> None:
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps(json.loads(files["one"].read_text()) | wrong))
    more = {"report": ("-o", tmp_path / "r.html"), "diff": (files["other"],)}.get(command, ())
    assert said in fails(command, edited, *more)


def test_flags_that_would_say_nothing(files: dict[str, Path], tmp_path: Path) -> None:
    assert "pass it behind the plan" in fails("show", files["one"], "--batch", 3)
    priced = tmp_path / "priced.json"
    content = json.loads(files["one"].read_text()) | {"hardware_digest": "0" * 12}
    priced.write_text(json.dumps(content))
    assert "The plan was priced for" in fails("simulate", priced, "--hardware", "a100")


def test_what_a_factory_prints_is_no_result(tmp_path: Path) -> None:
    made = run("plan", f"{FACTORIES}:chatty", "--mesh", 2, "-o", tmp_path / "p.json", "--json")
    assert json.loads(made.stdout) and "building the model" in made.stderr


def test_debug_shows_the_traceback_wherever_it_stands(tmp_path: Path) -> None:
    missing = tmp_path / "none.json"
    for words in (("--debug", "show", missing), ("show", missing, "--debug")):
        result = run(*words)
        assert result.exit_code == 1
        assert "Traceback" in result.stderr and "error: Cannot read the plan" in result.stderr


def test_compare(tmp_path: Path) -> None:
    mine = tmp_path / "mine.json"
    ok("plan", f"{FACTORIES}:good", "--mesh", "4", "--hardware", "h100", "-o", mine)
    words = ("compare", f"{FACTORIES}:good", "--mesh", "2x2", "--hardware", "h100")
    text = ok(*words, "--preset", "ddp", "--plan", mine)
    assert "ddp" in text and "fastest" in text and "fsdp" not in text
    found = json.loads(ok(*words, "--preset", "fsdp", "--json"))
    assert [each["name"] for each in found["plans"]] == ["autopar", "fsdp"]
    assert {figure["name"] for figure in found["plans"][0]["figures"]} > {"step", "peak"}


def test_compare_refuses(files: dict[str, Path]) -> None:
    words = ("compare", f"{FACTORIES}:good", "--mesh", "2x2", "--hardware", "h100")
    assert "Did you mean 'fsdp'" in fails(*words, "--preset", "fspd")
    assert "given twice" in fails(*words, "--plan", files["one"], "--plan", files["one"])
    stranger = fails(*words, "--preset", "ddp", "--plan", files["one"])
    assert "one.json is not a plan of this model and batch" in stranger


def test_simulate(files: dict[str, Path], tmp_path: Path) -> None:
    text = ok("simulate", files["pipe"], "--trace", tmp_path / "t.json")
    assert "worker 0" in text and "memory" in text and "ui.perfetto.dev" in text
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    changed = ok("simulate", files["one"], "--bandwidth", "y=0.5x", "--straggler", "3=1.2x")
    assert "bandwidth of y x0.5, rank 3 x1.2 slower" in changed
    found = json.loads(ok("simulate", files["pipe"], "--microbatches", 8, "--json"))
    assert found["samples"] == 2.0 and len(found["rows"]) == 2 and "simulated" not in found


def test_simulate_refuses(files: dict[str, Path]) -> None:
    assert "there are x, y" in fails("simulate", files["one"], "--bandwidth", "node=0.5x")
    assert "--stages auto --microbatches 64" in fails(
        "simulate", files["one"], "--microbatches", 64
    )
    assert "no rank 9" in fails("simulate", files["pipe"], "--straggler", "9=2x")


def test_report(files: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "deep" / "page.html"
    assert "MB)" in ok("report", files["one"], "-o", page)
    assert "TinyLM" in page.read_text()
    mine = tmp_path / "mine.json"
    ok("plan", f"{FACTORIES}:good", "--mesh", "2x2", "--hardware", "h100", "-o", mine)
    step = tmp_path / "step.json"
    step.write_text(json.dumps(measured("MLP").to_dict()))
    ok("report", mine, "-o", page, "--model", f"{FACTORIES}:good", "--explain", "up.weight",
       "--explain", "head/linear", "--measured", step)  # fmt: skip
    text = page.read_text()
    assert "roofline-chart" in text and "Module):" in text
    assert "class MLP(nn.Module):" in text and "def chatty()" not in text, (
        "the model's, not the factory's"
    )
    assert "<summary>up.weight is " in text and "The step took 1.0 s" in text


def measured(model: str) -> Beside:
    return Beside(model, "x=2", "cpu", "0" * 12, 0.9, 1.0, 1.1, 0.01, 0.02, (), ())


def _without(path: Path, key: str) -> Path:
    content = json.loads(path.read_text())
    del content[key]
    path.write_text(json.dumps(content))
    return path


def test_report_refuses(files: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    (tmp_path / "one.txt").write_text("{")
    assert "is no folder" in fails("report", files["one"], "-o", page, "--frontier", files["one"])
    assert "holds no plans" in fails("report", files["one"], "-o", page, "--frontier", tmp_path)
    assert "Cannot write" in fails("report", files["one"], "-o", files["one"] / "page.html")
    assert "pass --model as well" in fails("report", files["one"], "-o", page, "--explain", "scale")
    step = tmp_path / "step.json"
    step.write_text(json.dumps(measured("MLP").to_dict()))
    words = ("report", files["one"], "-o", page, "--measured")
    assert "is a step of MLP, the plan is of TinyLM" in fails(*words, step)
    assert "Cannot read the measured step" in fails(*words, tmp_path / "none.json")
    assert "is not a measured step: mesh" in fails(*words, _without(step, "mesh"))
    assert "is not a measured step: the file" in fails(*words, page.parent / "one.txt")
    assert "runs no pipelines" in fails("report", files["pipe"], "-o", page, "--measured", step)
    stranger = fails("report", files["one"], "-o", page, "--model", f"{FACTORIES}:good")
    assert "does not belong to" in stranger
    assert not page.exists()


def test_show_parts(files: dict[str, Path]) -> None:
    assert "stored" in ok("show", files["one"], "--tensor", "scale")
    assert "mlp.up.weight" in ok("show", files["one"], "--block", "model.layers.0")
    assert "predicted step" in ok("show", files["pipe"], "--stage", 1)
    assert json.loads(ok("show", files["one"], "--json"))["model"] == "TinyLM"
    found = json.loads(ok("show", files["pipe"], "--tensor", "embed.weight", "--json"))
    assert found["shape"] == [512, 64] and found["part"]
    assert "no stages" in fails("show", files["one"], "--stage", 0)
    assert "not both" in fails("show", files["one"], "--block", "model", "--tensor", "scale")


def test_constraints_from_a_file(tmp_path: Path) -> None:
    asked, plan = tmp_path / "mine.toml", tmp_path / "plan.json"
    asked.write_text('[forbid]\n"stored:up.weight" = { x = "S" }\n')
    words = ("plan", f"{FACTORIES}:good", "--mesh", "2", "--hardware", "h100", "-o", plan)
    assert "not S" in ok(*words, "--constraints", asked, "--constraint", "stored:head.*=[I]")
    assert "◆" in ok("show", plan)
    clash = fails(*words, "--constraints", asked, "--constraint", "stored:up.*=[S(0)]")
    assert "two constraints clash" in clash and "mine.toml:2" in clash and "--constraint" in clash
