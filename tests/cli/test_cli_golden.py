"""What every command says to people, as transcripts: commands, their output, and their exit codes.

All figures stand, those of plans that are made here too.  A change of the cost model changes them: read
the diff that ``--update-golden`` makes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from autopar.plans.identity import Identity
from autopar.profile.traced_step import Beside, FlowLine, Line
from autopar.render.text import step_beside, to_text
from cost_models.hardware import load
from tests.cli.commands import run
from tests.render.text import hand_made

Golden = Callable[[str, str], None]
ROOT = Path(__file__).parents[2]
MODEL = "tests.cli.factories:good"
ON = f"{MODEL} --mesh 2 --hardware h100"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans by their own names, and a console that is as wide everywhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for name, plan in {
        "plan": hand_made.plan(), "other": hand_made.other(), "pipeline": hand_made.pipeline(),
        "longer": hand_made.pipeline(3, 8),
    }.items():  # fmt: skip
        Path(f"{name}.json").write_text(plan.to_json())


def transcript(commands: Iterable[str]) -> str:
    """Each command as typed, what it printed, what it complained, how it ended."""
    said = []
    for command in commands:
        result = run(*re.findall(r"'[^']*'|\S+", command.replace("\n", " ")))
        said.append(f"$ autopar {command}\n{result.stdout}{result.stderr}[{result.exit_code}]\n")
    text = "\n".join(said).replace(f"{Path.cwd()}/", "").replace(f"{ROOT}/", "")
    # The library warns once in a process, so before whichever test comes first.
    lines = [line for line in text.splitlines() if not line.startswith("[transformers]")]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def blotted(text: str) -> str:
    """Without what another run, or another installation, says differently."""
    # Predictions are of profiles that autopar brings along, and no clock, hash seed or number of
    # processes is in them; they are printed to two to four digits, which sums in another order do not
    # reach.  So they stand.  A page's size is that of the drawing library which is installed.
    text = re.sub(r"(solved in +)\S+ \S+", r"\1<seconds>", text)
    text = re.sub(r"(made by +).*", r"\1<versions>", text)
    return re.sub(r"\(\S+ MB\)", "(<size>)", text)


def test_what_needs_a_plan_alone(golden: Golden) -> None:
    commands = (
        "show plan.json",
        "show pipeline.json",
        "show pipeline.json --stage 1",
        "show plan.json --block model.layers.5",
        "show plan.json --tensor scale",
        "diff plan.json other.json",
        "diff plan.json plan.json",
        "diff pipeline.json longer.json",
        "simulate plan.json",
        "simulate pipeline.json --microbatches 8 --straggler 0=2x",
        "simulate plan.json --bandwidth y=0.5x --trace trace.json",
        "hardware",
        "presets",
    )
    golden("cli_plans.txt", transcript(commands))


@pytest.mark.thorough
def test_what_needs_a_model(golden: Golden) -> None:
    commands = (
        f"plan {ON} --memory 1GiB --constraint stored:head.*=[I] -o made.json --problem problem.json",
        f"show made.json {MODEL}",
        f"explain made.json {MODEL} up.weight --rows 2",
        f"explain made.json {MODEL} up/linear --rows 1",
        f"verify made.json {MODEL}",
        f"emit made.json {MODEL} -o out",
        f"compare {ON} --preset ddp --plan made.json",
        f"frontier {ON}",
        f"map {ON} --batches 8 --memories 1KiB,1GiB",
        "solve problem.json",
        "solve problem.json --memory 1GiB --ilp",
        f"report made.json --model {MODEL} -o report.html",
        f"rules --model {MODEL}",
        f"plan {ON} -o p.json --memory 1KiB",
    )
    golden("cli_models.txt", blotted(transcript(commands)))


@pytest.mark.thorough
def test_stages(golden: Golden) -> None:
    on = "tests.cli.factories:gpt --mesh 2 --hardware cpu"
    commands = (
        f"plan {on} --stages 2 --schedule 1f1b --microbatches 2 -o made.json",
        "explain made.json tests.cli.factories:gpt h.1.mlp.c_fc.weight --rows 1",
        "emit made.json tests.cli.factories:gpt -o out",
    )
    golden("cli_stages.txt", transcript(commands))


@pytest.mark.thorough
def test_errors(golden: Golden) -> None:
    Path("text.json").write_text("words")
    Path("bytes.json").write_bytes(b"\xff\xfe")
    Path("broken.py").write_text("def model(:\n")
    step = Beside(Identity.of(hand_made.other()), "0" * 12, 0.9, 1.0, 1.1, 0.01, 0.02, (), ())
    Path("step.json").write_text(json.dumps(step.to_dict()))
    Path("clash.toml").write_text(
        '[pin]\n"used:up.weight" = { x = "S(0)" }\n[forbid]\n"used:*.weight" = { x = "S(0)" }\n'
    )
    Path("above.toml").write_text('"up.weight" = "[S(0)]"\n')
    commands = (
        "show",
        "shwo plan.json",
        "show nowhere.json",
        "show .",
        "show text.json",
        "show bytes.json",
        "show plan.json --stage 0",
        "show pipeline.json --stage 9",
        "show plan.json --tensor scael",
        "show plan.json --block nowhere",
        "show plan.json --block zzz",
        "show pipeline.json --stage 0 --tensor scale",
        f"show plan.json {MODEL}",
        "diff plan.json pipeline.json",
        "simulate plan.json --bandwidth z=2x",
        "simulate plan.json --straggler one=2x",
        "simulate plan.json --straggler=-1=2x",
        "simulate plan.json --bandwidth x=1e30x",
        "simulate plan.json --trace plan.json/trace.json",
        "report plan.json -o plan.json/page.html",
        "report plan.json -o page.html --explain scale",
        "report plan.json -o page.html --database times.sqlite",
        "report plan.json -o page.html --measured text.json",
        "report plan.json -o page.html --measured step.json",
        "plan nowhere.py:model --mesh 2 -o p.json",
        "plan broken.py:model --mesh 2 -o p.json",
        "plan tests.cli.factories:godo --mesh 2 -o p.json",
        "plan tests.cli.factories:nothing --mesh 2 -o p.json",
        "plan tests.cli.factories:exits --mesh 2 -o p.json",
        f"plan {ON} -o p.json --preset fspd",
        f"plan {ON} -o p.json --memory lots",
        f"plan {ON} -o p.json --precision float8",
        f"plan {ON} -o p.json --constraint nothing=[R]",
        f"plan {ON} -o p.json --constraints clash.toml",
        f"plan {ON} -o p.json --constraints above.toml",
        f"plan {ON} -o p.json --stages two",
        f"plan {ON} -o p.json --stages 1+2",
        f"plan {ON} -o p.json --stages auto --preset fsdp",
        f"plan {ON} -o p.json --stages 2 --schedule pipedream",
        "plan tests.cli.factories:bare --mesh 2 -o p.json",
        f"plan {MODEL} --mesh 2 --hardware plan.json -o p.json",
        "plan hf:plan.json --mesh 2 -o p.json",
        f"plan {MODEL} --mesh 2y2 -o p.json",
        f"plan {MODEL} --mesh 9999999x9 -o p.json",
        f"plan {MODEL} --mesh 2 --hardware h10 -o p.json",
        f"plan {MODEL} --mesh 2 --devices 2 -o p.json",
        "plan hf:text.json --mesh 2 --batch 2 --sequence 8 -o p.json",
        "solve text.json",
        "hardware nowhere.toml",
        "rules lineer",
        "rules --shapes 3x3",
    )
    golden("cli_errors.txt", transcript(commands))
    assert not Path("p.json").exists() and not Path("page.html").exists()


def test_a_step_beside_its_prediction(golden: Golden) -> None:
    lines = (
        Line("layers.0", "lm.py:3", "x = a @ b", 1, "modelled", 0.002, 0.004, 0.004, 0.008),
        Line("layers.1", "lm.py:3", "x = a @ b", 1, "measured", 0.002, 0.003, 0.004, 0.006),
        Line("(autograd)", "", "", 0, "", 0.0, 0.001, 0.0, 0.001),
    )
    sent = FlowLine("x", "all_gather", "forward", 3, 4, 0.001, 0.002)
    of = Identity("LM", "0" * 12, "x=2", "cpu", "as the model", "AdamW", "modelled")
    found = Beside(of, "0" * 12, 0.02, 0.025, 0.03, 0.001, 0.002, lines, (sent,))
    golden("cli_step.txt", to_text(step_beside(found)))


def test_calibrate(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cost_models.calibrate.calibrate", lambda quick, progress: load("h100"))
    golden("cli_calibrate.txt", transcript(["calibrate --quick -o mine.toml"]))
    assert json.loads(run("hardware", "mine.toml", "--json").stdout)["device"]["name"]
