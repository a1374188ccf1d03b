"""What takes long moves on a terminal's standard error; results, pipes and files get none of it."""

from __future__ import annotations

import io
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.file_proxy import FileProxy

from autopar.cli import heartbeat
from autopar.cli.app import app
from autopar.cli.output import watched, working
from autopar.cli.traced import loaded_to_train
from autopar.errors import InputError
from tests.cli.commands import ok, run

GOOD = "tests.cli.factories:good"
GPT = "tests.cli.factories:gpt"
ON = ("--mesh", "2", "--hardware", "h100")
BUILDING, CAPTURING = "building the model", "capturing the model"


class Terminal(io.StringIO):
    """What is written to it can be asked for."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A plan of the MLP, and one of stages."""
    folder = tmp_path_factory.mktemp("plans")
    made = {"PLAN": str(folder / "plan.json"), "STAGES": str(folder / "stages.json")}
    ok("plan", GOOD, *ON, "-o", made["PLAN"])
    ok("plan", GPT, "--mesh", "2", "--hardware", "cpu", "--stages", "2", "--schedule", "1f1b",
       "--microbatches", "2", "-o", made["STAGES"])  # fmt: skip
    return made


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error is one from now on; pytest takes back what a fixture puts there."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    return made


def printed(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> str:
    """What a command prints to its standard output, which is no terminal."""
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    app(list(words), prog_name="autopar", standalone_mode=False)
    return out.getvalue()


def without_figures(text: str) -> str:
    """Seconds that planning took differ from run to run."""
    return re.sub(r"\d+(\.\d+)?", "#", text)


def complaints(stderr: str) -> list[str]:
    """What transformers says once in a process is not ours."""
    return [line for line in stderr.splitlines() if not line.startswith("[transformers]")]


def assert_in_order(shown: tuple[str, ...], screen: Terminal) -> None:
    """Each was drawn, the first time behind the one before."""
    places = [screen.getvalue().find(what) for what in shown]
    assert -1 not in places and places == sorted(places), screen.getvalue()


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("show", "PLAN", GOOD), (BUILDING, CAPTURING)),
        (("show", "STAGES", GPT), (BUILDING, CAPTURING)),
        (
            ("explain", "PLAN", GOOD, "up/linear", "--rows", "1"),
            (BUILDING, CAPTURING, "pricing the candidates", "solving again"),
        ),
        (("compare", GOOD, *ON, "--preset", "ddp"), (BUILDING, CAPTURING, "planning")),
        (("frontier", GOOD, *ON), (BUILDING, CAPTURING, "pricing", "looking for corners")),
        (("rules", "--model", GOOD), (BUILDING, CAPTURING, "looking for rules")),
        (("rules", "linear"), ("proving",)),
        (("map", GOOD, *ON, "--batches", "8", "--memories", "1GiB"), (BUILDING, "planning")),
        (("verify", "PLAN", GOOD), ("proving",)),
    ],
)
def test_what_takes_long_moves(
    words: tuple[str, ...], shown: tuple[str, ...], plans: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    words = tuple(plans.get(word, word) for word in words)
    piped = run(*words)
    assert piped.exit_code == 0 and complaints(piped.stderr) == [], "a pipe gets nothing"
    screen = terminal(monkeypatch)
    said = printed(words, monkeypatch)
    assert without_figures(said) == without_figures(piped.stdout), "results are what they were"
    assert "\x1b" not in said
    assert_in_order(shown, screen)


def test_timing_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning moves; what is timed shares its cores with nothing that moves."""
    still: list[bool] = []

    def measure(*_: object) -> tuple[list[Any], list[Any]]:
        still.append(not isinstance(sys.stderr, FileProxy))
        return [], []

    monkeypatch.setattr("autopar.profile.profiled_plan.measure", measure)
    words = ("profile", GOOD, "--mesh", "2", "--hardware", "cpu", "--preset", "ddp", "--database")
    piped = run(*words, tmp_path / "piped.sqlite")
    assert all(line.startswith("timing ") for line in complaints(piped.stderr))
    screen = terminal(monkeypatch)
    still.clear()
    assert "\x1b" not in printed((*words, str(tmp_path / "here.sqlite")), monkeypatch)
    assert still and all(still)
    shown = (BUILDING, CAPTURING, "planning ...", "distinct calls", "planning with these times")
    assert_in_order(shown, screen)


def test_work_within_work_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    with working("the whole"):
        with working("a part"):
            pass
        assert list(watched((1, 2), 2, "a bar")) == [1, 2]
    said = screen.getvalue()
    assert "the whole ..." in said and "a part" not in said and "a bar" not in said
    assert list(watched((1, 2), 2, "afterwards")) == [1, 2] and "afterwards" in screen.getvalue()


def test_a_failure_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    with pytest.raises(InputError), working("what fails"):
        raise InputError("so it is")
    assert sys.stderr is screen


def test_one_process_of_many_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of `profile --run` share a terminal."""
    screen = terminal(monkeypatch)
    assert loaded_to_train(GOOD, None, None) and screen.getvalue() == ""


@pytest.mark.thorough
def test_a_pipe_hears_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The innermost work, how far it is, and nothing once it has ended."""
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.05)
    with working("planning"):
        for _ in watched(range(3), 3, "solving"):
            time.sleep(0.2)
        time.sleep(0.2)
    said = capsys.readouterr().err
    assert re.search(r"^solving, 0 s \.\.\.$", said, re.M)
    assert re.search(r"^solving: 2 of 3, 0 s \.\.\.$", said, re.M)
    assert re.search(r"^planning, 1 s \.\.\.$", said, re.M)
    time.sleep(0.2)
    assert not capsys.readouterr().err


def test_of_several_ranks_one_speaks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.02)
    monkeypatch.setenv("RANK", "1")
    with working("planning"):
        time.sleep(0.2)
    assert not capsys.readouterr().err
