"""What `pip install .` puts into an environment is all that is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PLAN = """
import autopar, torch
from autopar.request import presets
assert autopar.__file__.startswith({site!r}), autopar.__file__
made = autopar.plan(
    torch.nn.Linear(8, 8), 2, {{"input": torch.ones(8, 8)}}, loss=torch.sum, hardware="h100",
    preset="ddp",
)
print(repr(made), *presets.names())
"""


def ran(*words: object, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.thorough
def test_the_wheel(tmp_path: Path) -> None:
    """Of the files that git has, as of a fresh clone; what it needs is in this environment already."""
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in files.stdout.splitlines():
        if name.split("/")[0] in (
            "autopar",
            "cost_models",
            "pyproject.toml",
            "README.md",
            "LICENSE",
        ):
            (tmp_path / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "clone" / name).write_bytes((ROOT / name).read_bytes())
    pip = ("-m", "pip", "--disable-pip-version-check", "--quiet")
    quick = ("--no-deps", "--no-build-isolation")
    site = tmp_path / "site"
    ran(*pip, "install", *quick, "--target", site, ".", cwd=tmp_path / "clone")
    assert (site / "autopar" / "py.typed").is_file() and not (site / "tests").exists()
    place = {"PYTHONPATH": str(site), "AUTOPAR_CACHE": str(tmp_path / "cache")}
    said = ran("-c", PLAN.format(site=str(site)), cwd=tmp_path, **place)
    assert said.startswith("<Plan ") and " zero2 " in said
    assert ran("-m", "autopar", "--version", cwd=tmp_path, **place).startswith("autopar 0.")
    listed = ran("-m", "autopar", "hardware", cwd=tmp_path, **place)
    assert "mi300x" in listed
    licence = next(site.glob("autopar-*.dist-info/licenses/LICENSE"))
    assert "Apache License" in licence.read_text()
