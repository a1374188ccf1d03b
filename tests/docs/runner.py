"""Runs the blocks of a page in a folder of its own, in their order."""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

from tests.docs.blocks import ROOT, Block, PageError, check_data, lines

LIMIT_S = 300
HOW = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
STAND_INS = Path(__file__).parent / "stand_ins"


@dataclass
class Runner:
    """`everyday` leaves slow blocks out; `environment` is added to that of commands."""

    folder: Path
    everyday: bool
    environment: Mapping[str, str]
    output: dict[str, str] = field(default_factory=dict)
    module: ModuleType = field(default_factory=lambda: ModuleType("page"))

    def run(self, blocks: list[Block]) -> None:
        """All blocks; raise `PageError` at the first that is wrong."""
        examples = self.folder / "examples"
        if not examples.exists():
            examples.symlink_to(ROOT / "examples")
        for block in blocks:
            self._run(block)

    def _run(self, block: Block) -> None:
        if self.everyday and block.slow:
            return
        if not block.comment.startswith("excerpt of "):
            check_data(block)
        if block.title:
            path = self.folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.code)
        elif block.comment.startswith("excerpt of "):
            self._excerpt(block, block.comment.removeprefix("excerpt of "))
        elif block.kind == "sh" and not block.is_checked:
            printed = [self._shell(block, command, code) for command, code in lines(block)]
            self.output[block.where] = "".join(printed)
        elif block.launch:
            (self.folder / block.launch.split()[-1]).write_text(block.code)
            self.output[block.where] = self._shell(block, block.launch, 0)
        elif block.kind == "python":
            self.output[block.where] = self._python(block)
        elif block.kind == "text" and block.behind and block.behind.where in self.output:
            _compare(block, self.output[block.behind.where])

    def _shell(self, block: Block, command: str, code: int) -> str:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self.folder,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode != code:
            raise PageError(
                f"{block.where}: `{command}` exits with {done.returncode}, not {code}:\n"
                f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
            )
        return done.stdout

    def _python(self, block: Block) -> str:
        """In this process: its warnings are errors like those of any test."""
        printed = io.StringIO()
        page, _, line = block.where.partition(":")
        # So that tracebacks, and whatever looks for sources, find the lines of the page.
        source = self.folder / f"{Path(page).stem}_{line}.py"
        source.write_text(block.code)
        try:
            # A page's Python may start commands as its reader does: from an environment that has them.
            with contextlib.redirect_stdout(printed), patch.dict(os.environ, self.environment):
                exec(compile(block.code, str(source), "exec"), self.module.__dict__)
        except Exception:
            raise PageError(f"{block.where} raised\n{traceback.format_exc()}") from None
        return printed.getvalue()

    def _excerpt(self, block: Block, name: str) -> None:
        """Spaces do not count at all: the formatter breaks lines of the page that the file has whole."""
        own = self.folder / name
        text = (own if own.exists() else ROOT / name).read_text()
        want, got = ("".join(each.split()) for each in (block.code, text))
        if not doctest.OutputChecker().check_output(f"...{want}...\n", f"{got}\n", HOW):
            raise PageError(f"{block.where}: the page says otherwise than {name}:\n{text[:3000]}")


def _compare(block: Block, got: str) -> None:
    if not doctest.OutputChecker().check_output(block.code, got, HOW):
        example = doctest.Example("", block.code)
        shown = doctest.OutputChecker().output_difference(example, got, HOW)
        raise PageError(f"{block.where}: the page says otherwise:\n{shown}")


def commands(folder: Path, socket: Path | None) -> dict[str, str]:
    """The environment in which `autopar`, `torchrun` and `python` are those of this interpreter.

    With the socket of `forked.py` they begin with all imports done.  `make` says what it would do;
    `sbatch`, `srun` and `scontrol` are a cluster of as many nodes as one likes on this machine.
    """
    folder.mkdir(exist_ok=True)
    real = {"autopar": "-m autopar", "torchrun": "-m torch.distributed.run", "python": ""}
    for name, words in real.items():
        quick = f'{STAND_INS / "forked.py"} {name} "$@"'
        slow = f'{words} "$@"'
        text = f"#!/bin/sh\nexec {sys.executable} {quick if socket else slow}\n"
        _executable(folder / name, text)
    _executable(folder / "make", f'#!/bin/sh\nexec {_which("make")} -n -C {ROOT} "$@"\n')
    for name in ("sbatch", "srun", "scontrol"):
        text = f'#!/bin/sh\nexec {sys.executable} {STAND_INS / "slurm.py"} {name} "$@"\n'
        _executable(folder / name, text)
    return {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "100",
        "FORKED_SOCKET": str(socket or ""),
        "REAL_PYTHON": sys.executable,
    }


def _executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _which(name: str) -> str:
    found = shutil.which(name)
    assert found is not None, f"{name} is not installed"
    return found
