"""Every command does its work, and the set of commands and flags is what is documented."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer

import autopar
from autopar.cli.app import app, main
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from cost_models.hardware import load, names, to_text
from tests.cli.commands import ok, run

FACTORIES = "tests/cli/factories.py"
FLAGS = {
    "plan": {
        "model", "--mesh", "--devices", "--axes", "--output", "-o", "--hardware", "--preset",
        "--constraint", "--constraints", "--optimizer", "--precision", "--memory", "--recompute",
        "--compression", "--stages", "--schedule", "--microbatches", "--cut", "--asynchronous",
        "--problem", "--database", "--batch", "--sequence",
    },
    "show": {
        "plan", "model", "--stage", "--block", "--tensor", "--batch", "--sequence",
    },
    "emit": {"plan", "model", "--output", "-o", "--batch", "--sequence"},
    "explain": {
        "plan", "model", "target", "--hardware", "--rows", "--stage", "--database", "--batch",
        "--sequence",
    },
    "diff": {"before", "after"},
    "compare": {
        "model", "--mesh", "--plan", "--preset", "--hardware", "--optimizer", "--precision",
        "--memory", "--database", "--batch", "--sequence",
    },
    "simulate": {
        "plan", "--trace", "--bandwidth", "--microbatches", "--straggler", "--hardware",
    },
    "report": {
        "plan", "--output", "-o", "--model", "--frontier", "--explain", "--measured", "--hardware",
        "--database", "--batch", "--sequence",
    },
    "frontier": {
        "model", "--mesh", "--hardware", "--optimizer", "--precision", "--output", "-o", "--database",
        "--batch", "--sequence",
    },
    "map": {
        "model", "--mesh", "--batches", "--memories", "--hardware", "--optimizer", "--precision",
        "--output", "-o", "--database", "--sequence",
    },
    "solve": {
        "problem", "--memory", "--solver", "--ilp", "--seconds", "--seed", "--rounds", "--processes",
        "--output", "-o",
    },
    "stages": {"file", "--seconds", "--output", "-o"},
    "verify": {"plan", "model", "--hardware", "--bound", "--database", "--batch", "--sequence"},
    "hardware": {"name"},
    "presets": set(),
    "rules": {"operator", "--model", "--shapes", "--batch", "--sequence"},
    "profile": {
        "model", "--mesh", "--output", "-o", "--hardware", "--preset", "--stages", "--schedule",
        "--microbatches", "--cut", "--precision", "--memory", "--database", "--threads", "--all",
        "--again", "--run", "--steps", "--batch", "--sequence",
    },
    "tune": {
        "model", "--mesh", "--output", "-o", "--profile", "--record", "--most", "--steps", "--seconds",
        "--hardware", "--optimizer", "--precision", "--memory", "--batch", "--sequence",
    },
    "fit": {
        "model", "--mesh", "--hardware", "--memory", "--optimizer", "--precision", "--database",
        "--sequence",
    },
    "price": {
        "model", "--config", "--tp", "--pp", "--dp", "--cp", "--ep", "--devices", "--vp",
        "--layers", "--microbatch", "--batch", "--schedule", "--zero", "--replicas",
        "--sequence-parallel", "--recompute", "--precision", "--optimizer", "--hardware",
        "--database", "--only", "-o", "--output", "--sequence",
    },
    "export": {
        "plan", "--to", "-o", "--output", "--host",
    },
    "calibrate": {"--output", "-o", "--quick", "--group", "--hardware"},
}  # fmt: skip
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32, "vocab_size": 64,
    "intermediate_size": 64, "max_position_embeddings": 32,
}  # fmt: skip


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "plan.json"
    text = ok(
        "plan", f"{FACTORIES}:good", "--mesh", "2x2", "--hardware", "h100", "--preset", "megatron",
        "--memory", "1GiB", "-o", path,
    )  # fmt: skip
    assert "predicted step" in text and f"wrote {path}" in text
    return path


def test_commands_and_flags() -> None:
    group = typer.main.get_command(app)
    found = {
        name: {
            text
            for parameter in command.params
            if parameter.name != "help"
            for text in (parameter.opts if parameter.opts[0][0] == "-" else [parameter.name])
        }
        for name, command in group.commands.items()  # type: ignore[attr-defined]
    }
    assert found == {name: flags | {"--json"} for name, flags in FLAGS.items()}
    assert [parameter.opts for parameter in group.params] == [
        ["--version"], ["--debug"], ["--install-completion"], ["--show-completion"],
    ]  # fmt: skip


def test_version() -> None:
    assert ok("--version").startswith("autopar ")


def test_help_names_every_command() -> None:
    text = ok("--help")
    assert all(name in text for name in FLAGS)


def test_plan_is_the_librarys(plan_file: Path) -> None:
    made = Plan.load(plan_file)
    from tests.models import mlp

    model, inputs, loss = mlp()
    expected = autopar.plan(
        model, (2, 2), inputs, loss=loss, hardware="h100", preset="megatron", memory_limit="1GiB"
    )
    assert made.digest == expected.digest
    assert made.preset == "megatron" and made.hardware == expected.hardware


def test_constraints_optimizer_and_precision(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    ok(
        "plan", "tests.cli.factories:good", "--mesh", "data=2", "--hardware", "h100", "-o", path,
        "--constraint", "stored:up.weight=[S(0)]", "--constraint", "stored:head.*=[I]",
        "--optimizer", "SGD", "--precision", "bfloat16",
    )  # fmt: skip
    made = Plan.load(path)
    assert str(made.parameter["up.weight"].stored) == "[S(0)]"
    assert (made.optimizer, made.precision, str(made.mesh)) == ("SGD", "bfloat16", "data=2")


def test_show_with_and_without_the_model(plan_file: Path) -> None:
    alone = ok("show", plan_file)
    assert "operators, types on (x, y)" in alone and "conversions" in alone
    assert max(map(len, alone.splitlines())) <= 100
    assert "up/linear" in ok("show", plan_file, f"{FACTORIES}:good")


@pytest.mark.thorough
def test_explain(plan_file: Path) -> None:
    weight = ok("explain", plan_file, f"{FACTORIES}:good", "up.weight", "--rows", "3")
    assert weight.startswith("up.weight is replicated on axis x, split by rows of the weight on")
    assert "stored [I, S(0)], in the step [R, S(0)]" in weight
    linear = ok("explain", plan_file, f"{FACTORIES}:good", "up/linear", "--rows", "1")
    chosen = next(line for line in linear.splitlines() if line.startswith("chosen "))
    assert "split by batch on axis x" in chosen
    stage = run("explain", plan_file, f"{FACTORIES}:good", "up/linear", "--stage", "0")
    assert stage.exit_code == 1 and "leave --stage out" in stage.stderr
    unknown = run("explain", plan_file, f"{FACTORIES}:good", "nope")
    assert unknown.exit_code == 1 and "Names look like" in unknown.stderr
    close = run("explain", plan_file, f"{FACTORIES}:good", "up.wieght").stderr
    assert "has no 'up.wieght'. Names look like up.weight" in close


@pytest.mark.slow
def test_explain_by_the_end_of_a_name(tmp_path: Path) -> None:
    """Of equal layers the first is explained; ends that mean different things are refused."""
    config, path = tmp_path / "config.json", tmp_path / "plan.json"
    config.write_text(json.dumps(LLAMA))
    model = (f"hf:{config}", "--batch", 4, "--sequence", 8)
    ok("plan", *model, "--mesh", "2", "--hardware", "h100", "--preset", "fsdp", "-o", path)
    end = ok("explain", path, *model[:1], "up_proj.weight", *model[1:])
    whole = ok("explain", path, *model[:1], "model.layers.0.mlp.up_proj.weight", *model[1:])
    assert end == whole and "layers.0.mlp.up_proj" in end
    wide = run("explain", path, *model[:1], "weight", *model[1:])
    assert wide.exit_code == 1 and "Name one of them" in wide.stderr
    unknown = run("explain", path, *model[:1], "upproj.weight", *model[1:])
    assert "Names look like model.layers.0.mlp.up_proj.weight" in unknown.stderr
    assert "layers.1" not in unknown.stderr


def test_frontier(tmp_path: Path) -> None:
    text = ok("frontier", f"{FACTORIES}:good", "--mesh", "2", "--hardware", "h100", "-o", tmp_path)
    plans = [Plan.load(path).estimate for path in tmp_path.glob("*.json")]
    assert f"wrote {len(plans)} plans" in text and len(plans) > 1
    for path in tmp_path.glob("*.json"):
        assert "optimal (for its memory, by the convex hull)" in ok("show", path)
    ordered = sorted(plans, key=lambda e: e.step_s)
    memory = [estimate.memory_nbytes for estimate in ordered]
    assert memory == sorted(memory, reverse=True)


@pytest.mark.slow
def test_map(tmp_path: Path) -> None:
    page = tmp_path / "map.md"
    asked = ("--mesh", "2", "--hardware", "cpu", "--batches", "65536,8", "-o", page)
    text = ok("map", f"{FACTORIES}:good", *asked, "--memories", "1GiB,200KiB")
    assert "data parallel" in text and f"wrote {page}" in text
    command = f"    autopar map {FACTORIES}:good --mesh 2 --hardware cpu --batches 65536,8"
    assert command in page.read_text()
    page.write_text(f"Before.\n\n{page.read_text()}\nAfter.\n")
    ok("map", f"{FACTORIES}:good", *asked, "--memories", "1GiB")
    lines = page.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("Before.", "After.")
    assert "| batch | 1.0 GiB |" in lines and "200KiB" not in page.read_text()


@pytest.mark.slow
def test_map_of_a_configuration(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA))
    asked = ("--mesh", 2, "--hardware", "h100", "--batches", 4, "--memories", "1KiB")
    assert "nothing fits" in ok("map", f"hf:{config}", *asked, "--sequence", 8)


def test_solve(tmp_path: Path) -> None:
    problem = tmp_path / "problem.json"
    ok(
        "plan", f"{FACTORIES}:good", "--mesh", "2", "--hardware", "h100", "-o", tmp_path / "p.json",
        "--problem", problem,
    )  # fmt: skip
    by_elimination, by_program = ok("solve", problem), ok("solve", problem, "--ilp")
    assert "optimal (by elimination)" in by_elimination
    assert "optimal (by linear programming)" in by_program
    assert by_elimination.splitlines()[0].split(",")[0] == by_program.splitlines()[0].split(",")[0]
    for limit in ("1", "1.2.3", ".", "1e400"):
        assert run("solve", problem, "--memory", limit).exit_code == 1
    assert (
        ok("solve", problem, "--memory", "none").splitlines()[0] == by_elimination.splitlines()[0]
    )
    problem.write_text('{"variables": 3}')
    assert run("solve", problem).exit_code == 1


def test_verify(plan_file: Path) -> None:
    text = ok("verify", plan_file, f"{FACTORIES}:good")
    assert "agrees" in text and "cannot say: a partial operand of F.linear" in text
    assert "proved again (elimination)" in text and "FAILS" not in text
    assert "not proved again" in ok("verify", plan_file, f"{FACTORIES}:good", "--no-bound")
    assert run("verify", plan_file, f"{FACTORIES}:small").exit_code == 1


def test_verify_refuses_what_it_cannot_compute_again(plan_file: Path, tmp_path: Path) -> None:
    content = json.loads(plan_file.read_text())
    content["bound_s"] /= 2
    content["versions"][0][1] = "0.0.1"
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content))
    refused = run("verify", path, f"{FACTORIES}:good")
    assert refused.exit_code == 1 and "bound        FAILS" in refused.stdout
    assert "The plan is refused" in refused.stderr and "- bound: bound_s is " in refused.stderr
    assert "warning: the plan was made with autopar 0.0.1, on this machine it is " in refused.stderr
    assert "bound_s is " not in ok("verify", path, f"{FACTORIES}:good", "--no-bound")


@pytest.mark.slow
def test_verify_with_a_profile_of_the_users(tmp_path: Path) -> None:
    profile, path = tmp_path / "mine.toml", tmp_path / "plan.json"
    h100 = load("h100")
    profile.write_text(to_text(replace(h100, device=replace(h100.device, name="mine"))))
    ok("plan", f"{FACTORIES}:good", "--mesh", "2", "--hardware", profile, "-o", path)
    unknown = run("verify", path, f"{FACTORIES}:good")
    assert unknown.exit_code == 1 and "priced for 'mine'" in unknown.stderr
    assert "--hardware" in unknown.stderr
    assert "FAILS" not in ok("verify", path, f"{FACTORIES}:good", "--hardware", profile)
    other = run("verify", path, f"{FACTORIES}:good", "--hardware", "a100")
    said = " ".join(other.stderr.split())
    assert other.exit_code == 1 and "hardware is mine in the plan" in said and "--hardware)" in said


def test_emitted_file_is_python(plan_file: Path, tmp_path: Path) -> None:
    text = ok("emit", plan_file, f"{FACTORIES}:good", "-o", tmp_path / "out")
    path = tmp_path / "out" / "MLP.py"
    assert str(path) in text
    assert "MLP" in runpy.run_path(str(path))
    assert [p.name for p in path.parent.iterdir() if p.suffix != ".pyc"] == ["MLP.py"]


@pytest.mark.slow
def test_hugging_face_configuration(tmp_path: Path) -> None:
    config, path = tmp_path / "config.json", tmp_path / "plan.json"
    config.write_text(json.dumps(LLAMA))
    sizes = ("--batch", 4, "--sequence", 8)
    asked = ("--mesh", 2, "--hardware", "h100", "--preset", "ddp")
    ok("plan", f"hf:{config}", *asked, *sizes, "-o", path)
    assert Plan.load(path).model == "LlamaForCausalLM"
    assert "class LlamaForCausalLM" in _emitted(path, config, tmp_path, *sizes)


def _emitted(path: Path, config: Path, folder: Path, *sizes: object) -> str:
    ok("emit", path, f"hf:{config}", *sizes, "-o", folder)
    return (folder / "LlamaForCausalLM.py").read_text()


def test_hardware() -> None:
    listed = ok("hardware")
    assert all(name in listed for name in names()) and "InfiniBand NDR" in listed
    printed = ok("hardware", "h100")
    assert 'name = "' in printed and "datasheet" in printed and "# one 400 Gbit/s" in printed
    every, one = json.loads(ok("hardware", "--json")), json.loads(ok("hardware", "h200", "--json"))
    assert set(every) == set(names()) and every["h200"] == one
    assert one["device"]["memory_bytes"] == 141e9 and one["tiers"][0]["devices"] == 256


def test_hardware_of_a_file_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(to_text(load("h200")).replace("launch_s", "start_s"))
    failed = run("hardware", path)
    assert failed.exit_code == 1 and "device.start_s is unknown" in failed.stderr
    assert "mine.toml" in " ".join(failed.stderr.split())


def test_presets() -> None:
    text = ok("presets")
    assert all(name in text for name in autopar.request.presets.names())


def test_rules_are_listed() -> None:
    listed = {row["operator"]: row for row in json.loads(ok("rules", "--json"))}
    assert set(autopar.rules.registered()) <= set(listed)
    assert listed["mm"] == {"operator": "mm", "source": "declared", "rule": "n k, k m -> n m"}
    assert "n k, k m -> n m" in ok("rules")


def test_rules_of_a_model() -> None:
    model = "tests.custom.model:gated"
    found = {row["operator"]: row for row in json.loads(ok("rules", "--model", model, "--json"))}
    gate = found["autopar_tests.swiglu.default"]
    assert (gate["source"], gate["rule"]) == ("discovered", "a b (w0! c) -> a b c")
    assert found["aten.linear.default"]["source"] == "declared"
    said = ok("rules", "swiglu", "--model", model)
    assert "found by experiment" in said and "c       32 entries: splits a part of dim 2" in said
    unknown = run("rules", "swigle", "--model", model)
    assert unknown.exit_code == 1 and "calls no operator 'swigle'" in unknown.stderr


def test_a_rule_is_explained_and_proved() -> None:
    said = ok("rules", "addmm", "--shapes", "18,6x12,12x18")
    assert "rule    + o, n i, i o -> n o" in said
    assert "the output becomes a sum over devices, operand 0 a part of one" in said
    assert "proof   splitting i: equal, forward and backward, in " in said
    (content,) = json.loads(ok("rules", "addmm", "--shapes", "18,6x12,12x18", "--json"))
    assert content["holds"] and [c["trials"] > 0 for c in content["claims"]] == [True] * 5
    assert content["linear"] == [[0, 1], [0, 2]]
    assert "draws random numbers" in ok("rules", "dropout")
    assert "needs vocab_parallel_embedding" in ok("rules", "embedding")


def test_a_rule_that_fails_its_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    from autopar.rules import declare

    wrong = declare.Declared("b h -> b h")
    monkeypatch.setitem(declare._REGISTER, "softmax", lambda call: wrong)
    declare.forget()
    try:
        refused = run("rules", "softmax")
        assert (
            refused.exit_code == 1 and "FAILS   splitting h: splitting h over 2" in refused.stdout
        )
    finally:
        monkeypatch.undo()
        declare.forget()


def test_rules_that_cannot_be_shown() -> None:
    for words, message in (
        (("rules", "aten::nope"), "There is no operator 'aten::nope'"),
        (("rules", "einsum"), "give --shapes, or --model"),
        (("rules", "mm", "--shapes", "6xy"), "Cannot read the shapes"),
        (("rules", "add.Nothing"), "its overloads are"),
    ):
        refused = run(*words)
        assert refused.exit_code == 1 and message in refused.stderr.replace("\n", " ")


def test_plans_say_whose_rules_they_use(tmp_path: Path) -> None:
    path, model = tmp_path / "plan.json", "tests.custom.model:gated"
    said = ok("plan", model, "--mesh", "2", "--hardware", "cpu", "-o", path)
    assert "rules: " in said and "6 discovered (autopar_tests.project, " in said
    assert "6 discovered (autopar_tests.project, " in ok("show", path, model)


def test_calibrate_writes_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {}

    def calibrate(quick: bool, progress: object) -> object:
        asked["quick"] = quick
        progress("measuring")  # type: ignore[operator]
        return load("h100")

    monkeypatch.setattr("cost_models.calibrate.calibrate", calibrate)
    path = tmp_path / "mine.toml"
    result = run("calibrate", "--quick", "-o", path)
    assert result.exit_code == 0 and asked == {"quick": True}
    assert "measuring" in result.stderr
    assert load(path) == load("h100")


def test_the_console_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[int] = []
    monkeypatch.setattr("os._exit", ended.append)
    for words, code in ((["presets"], 0), (["show", "nothing.json"], 1)):
        monkeypatch.setattr(sys, "argv", ["autopar", *words])
        main()
        assert ended.pop() == code
    assert "ddp" in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.parametrize("words", [["presets"], ["hardware", "--json"]])
def test_a_full_disk_is_told(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Small or large, buffered or not: one line, exit code 1."""
    ended: list[int] = []
    monkeypatch.setattr("os._exit", ended.append)
    full = Path("/dev/full").open("w")  # noqa: SIM115 - closing it may raise, after all checks
    monkeypatch.setattr(sys, "stdout", full)
    monkeypatch.setattr(sys, "argv", ["autopar", *words])
    main()
    monkeypatch.undo()
    assert ended == [1]
    said = capsys.readouterr().err
    assert said == "error: The output cannot be written: No space left on device.\n"
    with contextlib.suppress(OSError):  # what is still buffered cannot be written either
        full.close()


@pytest.mark.thorough
def test_stages_are_planned_shown_and_emitted(tmp_path: Path) -> None:
    model = ("tests.cli.factories:gpt",)
    path, forced = tmp_path / "auto.json", tmp_path / "forced.json"
    ok("plan", *model, "--mesh", "2", "--hardware", "cpu", "--stages", "auto", "--schedule", "1f1b",
       "--microbatches", "2", "-o", path)  # fmt: skip
    said = ok("plan", *model, "--mesh", "4", "--hardware", "cpu", "--stages", "1+3", "--schedule",
              "zb-h1", "--microbatches", "4", "-o", forced)  # fmt: skip
    assert "2 stages, zb-h1, 4 microbatches" in said and "1-3" in said
    plan = PipelinePlan.load(forced)
    assert plan.prediction is not None and plan.prediction.step_s > 0
    assert said.split("\nwrote")[0].strip() in ok("show", forced, *model)
    ok("emit", forced, *model, "-o", tmp_path)
    for stage in (0, 1):
        compile((tmp_path / f"GPT2LMHeadModel_stage{stage}.py").read_text(), "stage", "exec")
    table = (tmp_path / "GPT2LMHeadModel_schedule.md").read_text()
    assert "| 1 | 1-3 | x=3 | 1 |" in table and "worker 0 F0 F1 ···I0 W0 F2" in table
    chosen = PipelinePlan.load(path).prediction
    assert chosen is not None and chosen.bound_s is not None and chosen.compared
    assert "compared:" in ok("show", path)
    within = ok("explain", forced, model[0], "h.1.mlp", *model[1:])
    assert "Figures are of stage 1 of 2 alone" in within


@pytest.mark.slow
def test_across_hosts_stages_are_considered(tmp_path: Path) -> None:
    """Unless axes are spoken of: then the mesh is what the person says it is."""
    base = ("plan", "tests.cli.factories:gpt", "--hardware", "a100")
    across, within = tmp_path / "across.json", tmp_path / "within.json"
    said = ok(*base, "--mesh", "2x8", "-o", across)
    assert "microbatches on" in said
    assert "1f1b of" not in ok(*base, "--mesh", "8", "-o", within)
    assert "1f1b of" not in ok(*base, "--mesh", "2x8", "--preset", "fsdp", "-o", within)


def test_a_model_that_trains_nothing_is_warned_of(tmp_path: Path) -> None:
    base = ("--mesh", "2", "--hardware", "h100", "-o", tmp_path / "plan.json")
    said = run("plan", f"{FACTORIES}:untrained", *base)
    assert said.exit_code == 0
    assert "warning: MLP has no parameter with requires_grad" in said.stderr
    assert "warning" not in run("plan", f"{FACTORIES}:good", *base).stderr


def test_asynchronous_stages_are_planned_when_permitted(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    said = ok("plan", f"{FACTORIES}:good", "--mesh", "2", "--hardware", "cpu", "--stages", "2",
              "--schedule", "pipedream", "--asynchronous", "-o", path)  # fmt: skip
    assert "2 stages, pipedream, 1 microbatches" in said
    assert "versions of weights kept by stage: 2, 1" in " ".join(said.split())
    assert PipelinePlan.load(path).schedule.batches == 4


@pytest.mark.thorough
def test_flags_of_stages_that_make_no_sense(tmp_path: Path) -> None:
    base = ("plan", "tests.cli.factories:gpt", "--mesh", "2", "--hardware", "cpu")
    for more, said in [
        (("--stages", "two"), "Cannot read --stages 'two'"),
        (("--microbatches", "2"), "pass --stages auto"),
        (("--stages", "auto", "--schedule", "chimera"), "takes the schedules"),
        (("--stages", "auto", "--microbatches", "3"), "cannot be cut into 3"),
        (("--stages", "auto", "--preset", "fsdp"), "has yet to choose"),
        (("--asynchronous",), "pass --stages auto"),
        (("--stages", "auto", "--asynchronous"), "Pass a number of stages (--stages 2) with"),
        (("--stages", "2", "--schedule", "pipedream"), "Pass --asynchronous if that is"),
        (
            ("--stages", "2", "--asynchronous"),
            "--schedule 1f1b is none of them: leave",
        ),
        (("--stages", "2", "--schedule", "pipedream", "--asynchronous"), "Untie it"),
        (("--stages", "2", "--problem", tmp_path / "x.json"), "--problem"),
    ]:
        refused = run(*base, *more, "-o", tmp_path / "p.json")
        assert refused.exit_code == 1 and said in " ".join(refused.stderr.split()), refused.stderr


def test_files_are_for_whom_the_umask_lets_read(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        path = tmp_path / "plan.json"
        ok("plan", "tests.cli.factories:good", "--mesh", "2", "--hardware", "cpu", "-o", path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644 and [path] == list(tmp_path.iterdir())
