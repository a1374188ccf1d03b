"""``profile --run``: what is wrong is said before processes start; what they raise, in plain words."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from cost_models.calibrate import processes
from cost_models.errors import CostModelError
from tests.cli.commands import fails

FACTORIES = "tests/cli/factories.py"
ROOT = Path(__file__).parents[2]
GOOD = f"{FACTORIES}:good"


@pytest.fixture
def unstarted(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object, **__: object) -> None:
        raise AssertionError("no process should start")

    monkeypatch.setattr(processes, "run", start)


@pytest.mark.usefixtures("unstarted")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((f"{FACTORIES}:nope", "--mesh", "2"), "error: tests/cli/factories.py has no function"),
        ((f"{FACTORIES}:too_narrow", "--mesh", "2"), "error: MLP failed at"),
        ((GOOD, "--mesh", "2", "--preset", "nope"), "no preset 'nope'"),
        ((GOOD, "--mesh", "2", "--hardware", "h100"), "this machine has none"),
        ((GOOD, "--mesh", "2", "--database", "nope.sqlite"), "no profile database nope.sqlite"),
        ((f"{FACTORIES}:untrained", "--mesh", "2"), "MLP has no parameter with requires_grad"),
        ((GOOD, "--mesh", "100x100"), "A mesh of 10000 devices takes 10000 processes"),
    ],
)
def test_wrong_before_any_process_starts(words: tuple[str, ...], expected: str) -> None:
    assert expected in fails("profile", *words, "--run")


@pytest.mark.parametrize("page", ["docs/profile.md", "docs/cli.md", "docs/hardware.md"])
def test_torchrun_takes_the_documented_line(page: str) -> None:
    """It takes abbreviations of its own options wherever they stand, so ``--run`` for one of them."""
    found = re.findall(r"torchrun ((?:-|\.\.\.).*? autopar \w+[^`\n]*)", (ROOT / page).read_text())
    assert found, f"{page} says nothing of torchrun"
    for line in found:
        words = [word for word in line.split() if word != "..."]
        read = get_args_parser().parse_args(words)
        assert read.module and read.training_script == "autopar", line
        assert [read.training_script, *read.training_script_args] == words[words.index("autopar") :]


@pytest.mark.thorough
def test_a_process_that_dies_is_heard_at_once() -> None:
    with pytest.raises(CostModelError, match="Process 0 of 1 died with exit code 3"):
        processes.run(1, partial(os._exit, 3))


@pytest.mark.thorough
def test_what_a_process_raises_is_all_that_is_said() -> None:
    """The command ends without taking objects apart: nothing that it made may want that."""
    script = (
        "import functools, os\n"
        "from cost_models.calibrate import processes\n"
        "try:\n"
        "    processes.run(1, functools.partial(int, 'x'))\n"
        "except Exception as error:\n"
        "    print(error, flush=True)\n"
        "    os._exit(1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("A process failed: rank 0: ValueError: invalid literal")
    assert done.stderr == ""
