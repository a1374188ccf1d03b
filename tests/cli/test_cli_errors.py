"""Wrong input: one message that says what to do, no traceback, exit code 1 (2 for usage)."""

from __future__ import annotations

import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import fails, ok, run

FACTORIES = "tests/cli/factories.py"
GOOD = f"{FACTORIES}:good"


def plan_fails(folder: Path, model: str, *words: object, code: int = 1) -> str:
    """The message of `autopar plan`; no plan is written."""
    rest = words if "--mesh" in words else ("--mesh", "2x2", *words)
    message = fails("plan", model, "--hardware", "h100", "-o", folder / "p.json", *rest, code=code)
    assert list(folder.glob("*p.json*")) == []
    return message


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "plan.json"
    ok("plan", GOOD, "--mesh", "2", "--hardware", "h100", "--preset", "ddp", "-o", path)
    return path


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("nowhere.py:good", "There is no file nowhere.py"),
        ("nowhere.deep:good", "Cannot import nowhere.deep: ModuleNotFoundError"),
        ("good", "write file.py:factory"),
        (f"{FACTORIES}:", "write file.py:factory"),
        (f"{FACTORIES}:godo", "has no function 'godo'. Did you mean 'good'?"),
        (f"{FACTORIES}:SCALE", "has no function 'SCALE'"),
        (f"{FACTORIES}:raises", "raised RuntimeError: no such file: [weights].bin ("),
        (f"{FACTORIES}:nothing", "returned NoneType; it must return the model"),
        (f"{FACTORIES}:four", "returned (MLP, dict, NoneType, NoneType); it must return"),
        (f"{FACTORIES}:odd_inputs", "returned str as example inputs"),
        (f"{FACTORIES}:odd_loss", "returned str as loss, not a callable"),
        (f"{FACTORIES}:bare", "brings no example inputs"),
        (f"{FACTORIES}:exits", "raised SystemExit: 3 ("),
        (f"{FACTORIES}:value_of_the_meta_device", "make such tensors with device='cpu'"),
        (f"{FACTORIES}:of_the_meta_device", "have no values: scale. They are plain attributes"),
    ],
)
def test_model(model: str, expected: str, tmp_path: Path) -> None:
    assert expected in plan_fails(tmp_path, model)


def test_a_file_that_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import torch\n1 / 0\n")
    message = plan_fails(tmp_path, f"{tmp_path}/broken.py:model")
    assert "cannot be imported: ZeroDivisionError" in message
    assert "broken.py:2" in message


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--mesh", "2y2"), "Cannot read the mesh '2y2'; write 2x4 or node=2,gpu=4"),
        (("--mesh", "0x2"), "sizes start at 1"),
        (("--mesh", "9999999x9"), "has 89999991 devices; autopar plans for 1048576 at most"),
        (
            ("--preset", "fspd"),
            "no preset 'fspd'. Did you mean 'fsdp'? Known: context_parallel, ddp,",
        ),
        (("--hardware", "h10"), "no hardware profile 'h10'. Did you mean 'h100'?"),
        (("--hardware", "mine.toml"), "mine.toml"),
        (
            ("--hardware", "mine.json"),
            "mine.json is not a hardware profile: profiles are TOML files",
        ),
        (("--optimizer", "AdmaW"), "AdmaW"),
        (
            ("--precision", "float8"),
            "--precision float8 is unknown: pass float32, bfloat16, float16",
        ),
        (("--memory", "40 apples"), "Cannot read the memory limit '40 apples'"),
        (("--memory", "1KiB"), "No plan fits 1 KiB"),
        (("--constraint", "up.weight"), "write 'PATTERN=[S(0), R]'"),
        (("--constraint", "up.weight=[S(0)]"), "has 1 types; the mesh (x=2, y=2) has 2"),
        (("--constraint", "up.weight=[S(0), Q]"), "Cannot read the type 'Q'"),
        (("--constraint", "upp=[S(0), R]"), "No name matches"),
        (("--constraint", "a=[R]", "--constraint", "a=[I]"), "two constraints on 'a'"),
        (("--batch", "4"), "--batch and --sequence are for hf: models"),
    ],
)
def test_options(words: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    assert expected in plan_fails(tmp_path, GOOD, *words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ("--precision", "float8"),
            "--precision float8 is unknown: pass float32, bfloat16, float16",
        ),
        (("--optimizer", "AdmaW"), "AdmaW"),
        (("-o", "README.md"), "README.md is a file; name a folder"),
    ],
)
def test_frontier(words: tuple[str, ...], expected: str) -> None:
    assert expected in fails("frontier", GOOD, "--mesh", "2", "--hardware", "h100", *words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--batches", "8,x"), "Cannot read the batches '8,x': write whole numbers, as 8,32"),
        (("--batches", "0"), "Cannot read the batches '0'"),
        (("--batches", "8,,32"), "Cannot read the batches"),
        (
            ("--batches", "9" * 30),
            f"A batch of {'9' * 30} is too large: pass 1099511627776 at most",
        ),
        (("--memories", "40GiB,"), "Cannot read the memory limit ''"),
        (("--memories", "much"), "Cannot read the memory limit 'much'"),
        (
            ("--precision", "float8"),
            "--precision float8 is unknown: pass float32, bfloat16, float16",
        ),
        (("--optimizer", "AdmaW"), "AdmaW"),
        (("--mesh", "2y2"), "Cannot read the mesh '2y2'"),
        (("--hardware", "h10"), "Did you mean 'h100'?"),
        (("--sequence", "8"), "--batch and --sequence are for hf: models"),
        (("-o", "README.md"), "README.md exists and has no place for a map"),
    ],
)
def test_map(words: tuple[str, ...], expected: str) -> None:
    given = {"--mesh": "2", "--hardware": "h100", "--batches": "8", "--memories": "1GiB"}
    rest = [word for pair in (given | {words[0]: words[1]}).items() for word in pair]
    assert expected in fails("map", GOOD, *rest)


def test_map_needs_a_model(tmp_path: Path) -> None:
    asked = ("--mesh", "2", "--hardware", "h100", "--batches", "8", "--memories", "1GiB")
    assert "There is no file nowhere.py" in fails("map", "nowhere.py:good", *asked)
    assert "brings no example inputs" in fails("map", f"{FACTORIES}:bare", *asked)
    assert "Missing argument" in fails("map", *asked, code=2)
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}')
    assert "--sequence N" in fails("map", f"hf:{config}", *asked)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("pln",), "No such command 'pln'. Did you mean 'plan'"),
        (("plan", GOOD), "--output"),
        (("plan", GOOD, "--mesh", "2", "-o", "."), "is a directory"),
        (
            ("plan", "hf:c.json", "--mesh", "2", "-o", "p", "--batch", "0"),
            "greater than or equal to 1",
        ),
        (("show",), "Missing argument"),
        (("emit", "p.json", GOOD), "--output"),
        (("presets", "--prset"), "No such option"),
    ],
)
def test_usage(words: tuple[str, ...], expected: str) -> None:
    message = fails(*words, code=2)
    assert expected.lower() in message.replace("│ ", "").lower()


def test_a_place_that_cannot_be_written(tmp_path: Path, plan_file: Path) -> None:
    (tmp_path / "file").write_text("")
    message = fails("emit", plan_file, GOOD, "-o", tmp_path / "file" / "below")
    assert "Cannot write" in message


NOWHERE = "deep" * 100
"""Longer than names may be: the system refuses already to say whether it is there."""


@pytest.mark.parametrize(
    "words",
    [
        ("plan", f"{NOWHERE}.py:good", "--mesh", "2", "-o", "never.json"),
        ("frontier", GOOD, "--mesh", "2", "-o", NOWHERE),
        ("map", GOOD, "--mesh", "2", "--batches", "8", "--memories", "1GiB", "-o", NOWHERE),
        ("report", "PLAN", "-o", "never.html", "--frontier", NOWHERE),
    ],
)
def test_a_path_that_the_system_refuses(words: tuple[str, ...], plan_file: Path) -> None:
    message = fails(*(plan_file if word == "PLAN" else word for word in words))
    assert f"Cannot use {NOWHERE}" in message
    assert "File name too long. Correct the path" in message


def test_what_the_system_refuses_without_a_file_is_a_defect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("autopar.cli.show.load_plan", refused)
    result = run("show", "plan.json")
    assert isinstance(result.exception, OSError) and "error: " not in result.stderr


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (("plan", GOOD, "--mesh", "2"), "-o"),
        (("plan", GOOD, "--mesh", "2", "-o", "never.json"), "--problem"),
        (("profile", GOOD, "--mesh", "2"), "-o"),
        (("profile", GOOD, "--mesh", "2"), "--database"),
        (("calibrate", "--quick"), "-o"),
        (("map", GOOD, "--mesh", "2", "--batches", "8", "--memories", "1GiB"), "-o"),
        (("report", "PLAN", "--model", GOOD), "-o"),
        (("emit", "PLAN", GOOD), "-o"),
        (("frontier", GOOD, "--mesh", "2"), "-o"),
        (("simulate", "PLAN"), "--trace"),
    ],
)
def test_a_place_is_tried_before_the_work(
    words: tuple[str, ...], flag: str, plan_file: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def work(*_: object, **__: object) -> None:
        raise AssertionError("nothing should be loaded or measured")

    for name in (
        "plan.load", "profile.load", "map.load", "frontier.load", "report.load_plan",
        "emit.load_plan", "simulate.load_plan",
    ):  # fmt: skip
        monkeypatch.setattr(f"autopar.cli.{name}", work)
    monkeypatch.setattr("cost_models.calibrate.calibrate", work)
    place = tmp_path / "file"
    place.write_text("")
    given = [plan_file if word == "PLAN" else word for word in words]
    for path in (place / "x", "/proc/nothing/x"):
        assert f"Cannot write {path}: " in fails(*given, flag, path)
    slip = tmp_path / "new" / "folder"
    said = f"Cannot write {slip / 'x'}: there is no folder {slip}. Make it, or correct the path."
    assert said in fails(*given, flag, slip / "x") and not slip.parent.exists()


def test_a_profile_is_called_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be read from no file of another name."""

    def work(*_: object, **__: object) -> None:
        raise AssertionError("nothing should be measured")

    monkeypatch.setattr("cost_models.calibrate.calibrate", work)
    assert "named something.toml" in fails("calibrate", "--quick", "-o", tmp_path / "x.txt")


def hf_fails(folder: Path, content: Any, *sizes: object) -> str:
    path = folder / "config.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return plan_fails(folder, f"hf:{path}", *(sizes or ("--batch", 2, "--sequence", 8)))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "is not a JSON configuration"),
        ("[1]", "it holds a list"),
        ({"schema": 3, "graph_digest": "0"}, "is a plan that autopar wrote, not a configuration"),
        ("[" * 100_000, "is not a JSON configuration: maximum recursion depth"),
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "is not a configuration of a model: no model_type",
        ),
        ({"model_type": "lama"}, "no model_type 'lama'. Did you mean 'llama'?"),
        ({"model_type": "gpt2"}, "'architectures' must name a model"),
        ({"model_type": "gpt2", "architectures": "GPT2LMHeadModel"}, "must name a model"),
        ({"model_type": "gpt2", "architectures": ["GPT2LMHead"]}, "Did you mean 'GPT2LMHead"),
        ({"model_type": "gpt2", "architectures": ["GPT2Config"]}, "must name a model"),
        (
            {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_positions": 4},
            "--sequence 8 is longer than the model's 4 positions",
        ),
        (
            {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_head": 5},
            "GPT2LMHeadModel cannot be built",
        ),
        (
            {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_head": "five"},
            "GPT2LMHeadModel cannot be built: StrictDataclassFieldValidationError",
        ),
    ],
)
def test_hugging_face(content: Any, expected: str, tmp_path: Path) -> None:
    assert expected in hf_fails(tmp_path, content)


def test_hugging_face_needs_sizes_and_a_file(tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
    assert "need --batch N and --sequence N" in hf_fails(tmp_path, config, "--batch", 2)
    gone = plan_fails(tmp_path, "hf:nowhere.json", "--batch", 2, "--sequence", 8)
    assert "Cannot read nowhere.json" in gone and "model.config.save_pretrained(folder)" in gone
    for sizes in ((9 * 10**18, 8), (1, 10**30)):
        long = hf_fails(tmp_path, config, "--batch", sizes[0], "--sequence", sizes[1])
        assert f"{sizes[0] * sizes[1]} tokens; pass 1099511627776 at most" in long


def test_problems_are_named(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    path.write_text("{}")
    assert "problem.json is not a problem: variables" in fails("solve", path)
    path.write_text('{"variables": [{"name": "a", "seconds": [1, 2], "nbytes": [1]}]}')
    assert "problem.json: " in fails("solve", path)
    path.write_text('{"variables": [{"name": "a", "seconds": [1]}, {"name": "a", "seconds": [2]}]}')
    assert "problem.json: Two variables are called 'a'" in fails("solve", path)


@pytest.mark.parametrize("words", [("--mesh", "2", "--threads", "99999999"), ("--mesh", "9999")])
def test_a_crowd_is_not_timed(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autopar.cli.traced.cores", lambda: 2)
    message = fails("profile", GOOD, "--hardware", "cpu", *words)
    assert "would be timed at once; on this machine's 2 cores 16 threads are the most" in message


def changed(plan_file: Path, folder: Path, **fields: object) -> Path:
    """The plan with some fields replaced."""
    path = folder / "changed.json"
    path.write_text(json.dumps({**json.loads(plan_file.read_text()), **fields}))
    return path


def test_plan_files(plan_file: Path, tmp_path: Path) -> None:
    assert "Cannot read the plan" in fails("show", tmp_path / "none.json")
    assert "Cannot read the plan" in fails("show", tmp_path)
    corrupt = tmp_path / "corrupt.json"
    corrupt.write_text(plan_file.read_text()[:200])
    assert "is not an autopar plan" in fails("show", corrupt)
    corrupt.write_bytes(b"\xff\xfe\x00")
    assert "Cannot read the plan" in fails("show", corrupt)
    corrupt.write_text("[" * 100_000)
    assert "recursion limit" in fails("show", corrupt)
    assert "not an autopar plan: mesh" in fails("show", changed(plan_file, tmp_path, mesh="2y"))
    foreign = fails("show", changed(plan_file, tmp_path, schema=99))
    assert "plan schema 99" in foreign and "Make a new one" in foreign


def test_a_plan_of_another_model_says_what_differs(plan_file: Path, tmp_path: Path) -> None:
    for command in (("emit", "-o", tmp_path / "out"), ("show",)):
        name, *rest = command
        message = fails(name, plan_file, f"{FACTORIES}:small", *rest)
        assert "does not belong to" in message and "other sizes: batch" in message
        message = fails(name, plan_file, "tests.models:cnn", *rest)
        assert "the plan is for MLP, the model is CNN" in message
        assert "parameters that the model lacks: head.bias" not in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("given", [(), ("--mesh", "2", "--devices", "2")])
def test_a_mesh_or_devices(given: tuple[str, ...], tmp_path: Path) -> None:
    assert "either --mesh, such as 2x4, or --devices" in fails(
        "plan", GOOD, *given, "-o", tmp_path / "p.json"
    )


def test_too_many_devices(tmp_path: Path) -> None:
    words = ("plan", GOOD, "--devices", "999999999", "-o", tmp_path / "p.json")
    assert "autopar plans for 1048576 at most" in fails(*words)


def test_torch_logs_nothing_of_what_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert "while it ran on the inputs" in plan_fails(tmp_path, f"{FACTORIES}:too_narrow")
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_a_device_is_written_into_and_never_replaced(plan_file: Path, tmp_path: Path) -> None:
    """`-o /dev/null` of somebody who may do anything must leave the device there."""
    pipe, link = tmp_path / "pipe", tmp_path / "full"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_text)
        ok("report", plan_file, "-o", pipe)
        assert "<html" in read.result(60) and pipe.is_fifo()
    link.symlink_to("/dev/full")
    assert "Cannot write" in fails("report", plan_file, "-o", link)
    assert link.is_symlink() and Path("/dev/full").is_char_device()
