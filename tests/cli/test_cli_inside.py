"""The commands that look inside of plans: what they print, as text and as JSON, and what they refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from autopar.cli.app import app
from autopar.cli.examples import EXAMPLES
from autopar.plans.plan import Plan
from cost_models.hardware import digest, load, to_text
from cost_models.measured import Database, Setting
from tests.cli.commands import fails, ok, run
from tests.cli.test_cli_measured import step_of
from tests.render.text import hand_made

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


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"schema": 9}, "has pipeline schema 9"), ({"cuts": 3}, "is not a pipeline's plan: cuts")],
)
def test_pipelines_that_cannot_be_read(
    wrong: dict[str, object], said: str, files: dict[str, Path], tmp_path: Path
) -> None:
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps(json.loads(files["pipe"].read_text()) | wrong))
    message = fails("show", edited)
    assert said in message and "Make a new one with `autopar plan --stages auto`" in message


def test_flags_that_would_say_nothing(files: dict[str, Path], tmp_path: Path) -> None:
    assert "pass it after the plan" in fails("show", files["one"], "--batch", 3)
    priced = tmp_path / "priced.json"
    content = json.loads(files["one"].read_text()) | {"hardware_digest": "0" * 12}
    priced.write_text(json.dumps(content))
    assert "The plan was priced for" in fails("simulate", priced, "--hardware", "a100")


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A plan and the profile that priced it, which is called "cpu" as `calibrate` calls it."""
    folder = tmp_path_factory.mktemp("calibrated")
    cpu, profile, plan = load("cpu"), folder / "mine.toml", folder / "plan.json"
    device = replace(cpu.device, memory_bytes=cpu.device.memory_bytes / 2)
    profile.write_text(to_text(replace(cpu, device=device)))
    ok("plan", f"{FACTORIES}:good", "--mesh", "2", "--hardware", profile, "-o", plan)
    return plan, profile


@pytest.mark.parametrize(
    "words",
    [
        "explain PLAN MODEL up.weight --rows 1",
        "report PLAN -o PAGE",
        "report PLAN -o PAGE --model MODEL",
        "simulate PLAN --bandwidth x=0.5x",
        "verify PLAN MODEL --no-bound",
    ],
)
def test_a_calibrated_profile_is_not_the_shipped_one_of_its_name(
    words: str, calibrated: tuple[Path, Path], tmp_path: Path
) -> None:
    plan, profile = calibrated
    page = tmp_path / "page.html"
    given = {"PLAN": plan, "PAGE": page, "MODEL": f"{FACTORIES}:good"}
    asked = [given.get(word, word) for word in words.split()]
    message = fails(*asked)
    assert digest(load("cpu")) in message and digest(load(profile)) in message
    assert "--hardware" in message and not page.exists()
    ok(*asked, "--hardware", profile)


def test_what_needs_no_figure_of_the_profile_does_not_ask_for_it(
    calibrated: tuple[Path, Path],
) -> None:
    assert "as planned" in ok("simulate", calibrated[0])


def test_what_a_factory_prints_is_no_result(tmp_path: Path) -> None:
    made = run("plan", f"{FACTORIES}:chatty", "--mesh", 2, "-o", tmp_path / "p.json", "--json")
    assert json.loads(made.stdout) and "building the model" in made.stderr


def test_debug_shows_the_traceback_wherever_it_stands(tmp_path: Path) -> None:
    missing = tmp_path / "none.json"
    for words in (("--debug", "show", missing), ("show", missing, "--debug")):
        result = run(*words)
        assert result.exit_code == 1
        assert "Traceback" in result.stderr and "error: Cannot read the plan" in result.stderr


@pytest.mark.thorough
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
    long = fails("simulate", files["pipe"], "--microbatches", 1_000_000_000)
    assert "too long to simulate: pass 4096 at most" in long


@pytest.mark.thorough
def test_report(files: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert "MB)" in ok("report", files["one"], "-o", page)
    assert "TinyLM" in page.read_text()
    mine = tmp_path / "mine.json"
    ok("plan", f"{FACTORIES}:good", "--mesh", "2x2", "--hardware", "h100", "-o", mine)
    step = tmp_path / "step.json"
    step.write_text(json.dumps(step_of(Plan.load(mine)).to_dict()))
    ok("report", mine, "-o", page, "--model", f"{FACTORIES}:good", "--explain", "up.weight",
       "--explain", "head/linear", "--measured", step)  # fmt: skip
    text = page.read_text()
    assert "roofline-chart" in text and "Module):" in text
    assert "class MLP(nn.Module):" in text and "def chatty()" not in text, (
        "the model's, not the factory's"
    )
    assert "<summary>up.weight is " in text and "The step took 1.0 s" in text


@pytest.mark.slow
def test_report_with_a_frontier(tmp_path: Path) -> None:
    """Of the very flags that made the plan."""
    on = (f"{FACTORIES}:good", "--mesh", "2", "--hardware", "h100", "--optimizer", "SGD",
          "--precision", "bfloat16")  # fmt: skip
    mine, folder, page = tmp_path / "mine.json", tmp_path / "curve", tmp_path / "page.html"
    ok("plan", *on, "-o", mine)
    ok("frontier", *on, "-o", folder)
    ok("report", mine, "-o", page)
    assert "frontier-chart" not in page.read_text()
    ok("report", mine, "-o", page, "--frontier", folder)
    assert "frontier-chart" in page.read_text()
    ok("frontier", *on[:-2], "-o", folder)
    other = fails("report", mine, "-o", page, "--frontier", folder)
    assert "precision: as the model, the plan's bfloat16" in other


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "BigLM"}, "model: BigLM, the plan's TinyLM"),
        ({"graph_digest": "f" * 12}, f"graph {'f' * 12}, the plan's 0123456789ab"),
        ({"mesh": "x=4, y=2"}, "mesh: x=4, y=2, the plan's x=2, y=4"),
        ({"hardware_digest": "f" * 12}, f"hardware: h100 ({'f' * 12}), the plan's h100 ()"),
        ({"precision": "bfloat16"}, "precision: bfloat16, the plan's float32"),
        ({"optimizer": "SGD"}, "optimizer: SGD, the plan's AdamW"),
        (
            {"times": {"setting": "a GPU", "digest": "f" * 12}},
            f"operator times: measured on a GPU ({'f' * 12}), the plan's modelled",
        ),
    ],
)
def test_report_refuses_another_curve(
    change: dict[str, object], said: str, files: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "curve"
    folder.mkdir()
    for name, fields in {"a": {}, "b": change}.items():
        content = json.loads(files["one"].read_text()) | fields
        (folder / f"{name}.json").write_text(json.dumps(content))
    message = fails("report", files["one"], "-o", tmp_path / "page.html", "--frontier", folder)
    assert "plans of another frontier, such as " in message and said in message
    assert message.count(", the plan's ") == 1 and "`autopar frontier MODEL -o`" in message


@pytest.mark.thorough
def test_report_refuses(files: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    (tmp_path / "one.txt").write_text("{")
    assert "is not a folder" in fails(
        "report", files["one"], "-o", page, "--frontier", files["one"]
    )
    assert "holds no plans" in fails("report", files["one"], "-o", page, "--frontier", tmp_path)
    assert "makes no pipelines" in fails(
        "report", files["pipe"], "-o", page, "--frontier", tmp_path
    )
    assert "Cannot write" in fails("report", files["one"], "-o", files["one"] / "page.html")
    assert "pass --model as well" in fails("report", files["one"], "-o", page, "--explain", "scale")
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


@pytest.mark.parametrize("command", ["explain", "verify", "report"])
def test_a_database_that_prices_nothing_is_refused(command: str, tmp_path: Path) -> None:
    """The plan's operators are modelled: times would be ignored, and a wrong name not noticed."""
    plan, model, there = tmp_path / "plan.json", f"{FACTORIES}:good", tmp_path / "times.sqlite"
    ok("plan", model, "--mesh", "2", "--hardware", "h100", "--preset", "ddp", "-o", plan)
    Database(there).write(Setting("a device", "gpu", 2.0**36, "torch 2"), ())
    words = {
        "explain": (plan, model, "up.weight"),
        "verify": (plan, model, "--no-bound"),
        "report": (plan, "--model", model, "--explain", "up.weight", "-o", tmp_path / "r.html"),
    }[command]
    gone = fails(command, *words, "--database", tmp_path / "nosuch.sqlite")
    assert "There is no profile database" in gone
    assert "leave it out, or plan again with it" in fails(command, *words, "--database", there)
