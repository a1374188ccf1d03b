"""The shell completes commands and options."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from autopar.cli import app


def completed(words: str) -> list[str]:
    """What bash would offer behind the last word."""
    place = {
        "_AUTOPAR_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    return CliRunner().invoke(app, [], prog_name="autopar", env=place).stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("autopar pl", ["plan"]),
        ("autopar s", ["show", "solve", "simulate"]),
        ("autopar simulate --b", ["--bandwidth"]),
        ("autopar plan train.py:make --me", ["--mesh", "--memory"]),
    ],
)
def test_commands_and_options(words: str, offered: list[str]) -> None:
    assert sorted(completed(words)) == sorted(offered)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda: (shell, f"/bin/{shell}"))
    detected = CliRunner().invoke(app, ["--show-completion"], prog_name="autopar")
    place = {"_AUTOPAR_COMPLETE": f"source_{shell}"}
    named = CliRunner().invoke(app, [], prog_name="autopar", env=place)
    for result in (detected, named):
        assert result.exit_code == 0 and f"_AUTOPAR_COMPLETE=complete_{shell}" in result.stdout
