"""Wrong values are answered without torch, in the command's own words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autopar.cli.completion.words import LISTED
from autopar.cli.main import _listed
from autopar.errors import AutoparError
from cost_models.errors import CostModelError
from tests.cli.commands import fails

PLAN = ("plan", "tests.cli.factories:gpt", "-o", "p.json", "--mesh", "2")
WRONG = [
    (*PLAN[:-1], "2y8"),
    (*PLAN[:-1], "0x2"),
    (*PLAN, "--hardware", "h1000"),
    (*PLAN, "--hardware", "none.toml"),
    (*PLAN, "--stages", "1y3"),
    (*PLAN, "--preset", "fdsp"),
    ("plan", "missing.py:make", "--mesh", "2", "-o", "p.json"),
    ("plan", "hf:missing.json", "--mesh", "2", "-o", "p.json", "--batch", "2", "--sequence", "8"),
    ("plan", "make", "--mesh", "2", "-o", "p.json"),
    ("show", "missing.json"),
    ("diff", "missing.json", "missing_too.json"),
    ("simulate", "missing.json"),
    ("compare", "tests.cli.factories:gpt", "--mesh", "2", "--preset", "ddp", "--preset", "fdsp"),
    ("compare", "tests.cli.factories:gpt", "--mesh", "2", "--plan", "missing.json"),
]


def early(*words: str) -> str:
    with pytest.raises((AutoparError, CostModelError)) as raised:
        _listed(args=list(words))
    return " ".join(str(raised.value).split())


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_it_is_the_message_of_the_command(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert early(*words) in fails(*words)


def test_no_torch_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom autopar.cli.main import main\nsys.argv[1:] = 'show missing.json'.split()\n"
        "try:\n    main()\nfinally:\n    print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (run.returncode, run.stdout.strip()) == (1, "False"), run.stderr
    assert "error: Cannot read the plan missing.json: No such file" in run.stderr


def test_right_values_are_left_to_the_command(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as end:
        _listed(args=[*PLAN, "--hardware", "h100", "--preset", "ddp", "--stages", "1x1+1"])
    assert end.value.code == 0
    with pytest.raises(SystemExit) as end:
        _listed(args=[*PLAN, "--hardware", "", "--preset", ""])
    assert end.value.code == 0 and LISTED.is_file()
