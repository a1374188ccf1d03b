"""The shell completes commands, options, and what may stand behind them, without importing torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import autopar.cli.main
from autopar.cli.app import app
from autopar.cli.completion.listed import LISTED, listed
from autopar.cli.completion.words import written
from tests.render.text import hand_made


def asked(words: str) -> dict[str, str]:
    """How bash asks what to offer behind the last word."""
    place = str(len(words.split(" ")) - 1)
    return {"_AUTOPAR_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": place}


def completed(words: str) -> list[str]:
    result = CliRunner().invoke(listed(), [], prog_name="autopar", env=asked(words))
    assert not result.stderr
    return result.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("autopar pl", ["plan"]),
        ("autopar s", ["show", "solve", "stages", "simulate"]),
        ("autopar simulate --b", ["--bandwidth"]),
        ("autopar plan train.py:make --me", ["--mesh", "--memory"]),
        ("autopar --ver", ["--version"]),
        ("autopar verify --no", ["--no-bound"]),
        ("autopar plan m.py:m --preset f", ["fsdp", "fsdp_experts", "fsdp_megatron"]),
        (
            "autopar compare m.py:m --preset ddp --preset zer",
            [
                "zero2",
                "zero2_context_parallel",
                "zero2_experts",
                "zero2_megatron",
                "zero2_megatron_sp",
            ],
        ),
        ("autopar map m.py:m --hardware h1", ["h100", "h100_96"]),
        ("autopar hardware mi", ["mi300x"]),
        ("autopar rules line", ["linear"]),
        ("autopar plan m.py:m --schedule zb-h", ["zb-h1", "zb-h2"]),
        ("autopar plan m.py:m --precision fl", ["float32", "float16", "float16/float16"]),
        ("autopar plan m.py:m --recompute s", ["selective"]),
        ("autopar show plan.json --tensor model.layers.5.n", ["model.layers.5.norm.weight"]),
        ("autopar show pipe.json --block model.layers.5.n", ["model.layers.5.norm"]),
        (
            "autopar explain plan.json m.py:m model.layers.5.norm",
            ["model.layers.5.norm", "model.layers.5.norm.weight"],
        ),
        ("autopar report plan.json --explain model.layers.5.norm.", ["model.layers.5.norm.weight"]),
        ("autopar explain nowhere.json m.py:m l", []),
        ("autopar explain text.json m.py:m l", []),
        ("autopar explain list.json m.py:m l", []),
        ("autopar explain . m.py:m l", []),
        ("autopar show --tensor l", []),
        ("autopar show pl", []),
    ],
)
def test_words(
    words: str, offered: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.json").write_text(hand_made.plan().to_json())
    Path("pipe.json").write_text(hand_made.pipeline().to_json())
    Path("text.json").write_text("words")
    Path("list.json").write_text("[1]")
    assert sorted(completed(words)) == sorted(offered)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda: (shell, f"/bin/{shell}"))
    detected = CliRunner().invoke(app, ["--show-completion"], prog_name="autopar")
    place = {"_AUTOPAR_COMPLETE": f"source_{shell}"}
    named = CliRunner().invoke(app, [], prog_name="autopar", env=place)
    for result in (detected, named):
        assert result.exit_code == 0 and f"_AUTOPAR_COMPLETE=complete_{shell}" in result.stdout


def test_what_is_listed_is_what_there_is(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        LISTED.write_text(written(), encoding="utf-8")
    assert LISTED.read_text(encoding="utf-8") == written(), (
        "run python -m autopar.cli.completion.words"
    )


def test_completing_imports_no_torch() -> None:
    script = (
        "import sys, autopar.cli.main\n"
        "try: autopar.cli.main.main()\n"
        "finally: print('torch' in sys.modules)\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env={**os.environ, **asked("autopar pre")}, capture_output=True,
                          text=True, check=True)  # fmt: skip
    assert done.stdout.split() == ["presets", "False"]


ANSWERED = {
    "--version": (0, "autopar 0."),
    "--help": (0, "Plan, inspect and emit parallel PyTorch models."),
    "paln": (2, "Did you mean 'plan'?"),
    "plan --mehs 2": (2, "--mesh"),
    "--debug plan --mehs 2": (2, "--mesh"),
}


@pytest.mark.parametrize("line", ANSWERED)
def test_what_is_answered_without_torch(line: str) -> None:
    code, said = ANSWERED[line]
    script = (
        "import sys, autopar.cli.main\n"
        "try: autopar.cli.main.main()\n"
        "finally: assert 'torch' not in sys.modules\n"
    )
    command = [sys.executable, "-c", script, *line.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code and said in done.stdout + done.stderr


def test_the_list_can_say_what_the_commands_take() -> None:
    """Of several words behind an option or as one argument it would make a wrong word."""
    group = typer.main.get_command(app)
    commands = vars(group)["commands"].values()
    assert all(parameter.nargs == 1 for command in commands for parameter in command.params)


def test_help_is_that_of_the_commands() -> None:
    runner = CliRunner()
    outputs = [
        runner.invoke(each, ["--help"], prog_name="autopar").output for each in (app, listed())
    ]
    assert outputs[0] == outputs[1]


def test_a_word_that_is_right_leads_to_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr("autopar.cli.app.main", lambda: called.append(sys.argv[1:]))
    monkeypatch.delenv("_AUTOPAR_COMPLETE", raising=False)
    lines = (["plan", "m.py:f", "--mesh", "2x2", "--debug"], ["plan", "--help"], ["show", __file__])
    for words in lines:
        monkeypatch.setattr(sys, "argv", ["autopar", *words])
        autopar.cli.main.main()
    assert called == list(lines)


def test_all_else_is_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr("autopar.cli.app.main", lambda: called.append(True))
    monkeypatch.setattr(sys, "argv", ["autopar", "presets"])
    monkeypatch.delenv("_AUTOPAR_COMPLETE", raising=False)
    autopar.cli.main.main()
    monkeypatch.setenv("_AUTOPAR_COMPLETE", "source_zsh")
    autopar.cli.main.main()
    assert called == [True, True]


def test_what_the_package_lacks() -> None:
    assert set(autopar.__all__) <= set(dir(autopar)) and autopar.errors.AutoparError
    with pytest.raises(AttributeError, match="'autopar' has no attribute 'paralellize'"):
        _ = autopar.paralellize


def test_an_interrupt_while_everything_is_imported_prints_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted:
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["autopar", "presets"])
    monkeypatch.delenv("_AUTOPAR_COMPLETE", raising=False)
    monkeypatch.setitem(sys.modules, "autopar.cli.app", Interrupted())
    with pytest.raises(SystemExit) as ended:
        autopar.cli.main.main()
    assert ended.value.code == 130
