"""The commands that pages call."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from autopar.ir.collectives import COLLECTIVES
from autopar.pipeline.schedules import SCHEDULES
from autopar.request.configurations.tool import TOOLS
from autopar.rules import user
from autopar.rules.declare import forget
from autopar.solver.registry import SOLVERS
from tests.docs.runner import ROOT, STAND_INS, commands


@pytest.fixture(scope="session")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Commands that are forked from one process: everyday."""
    place = tmp_path_factory.mktemp("forked")
    environment = commands(place / "bin", place / "socket")
    server = subprocess.Popen(
        [sys.executable, str(STAND_INS / "forked.py"), "serve", str(place / "socket")],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None and server.stdout.readline() == "ready\n"
    yield environment
    server.terminate()
    server.wait()
    server.stdout.close()


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The commands themselves: slow."""
    return commands(tmp_path_factory.mktemp("real") / "bin", None)


@pytest.fixture
def page_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a page runs; rules that it declares are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = dict(user._RULES)
    yield tmp_path
    user._RULES.clear()
    user._RULES.update(before)
    forget()


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page adds to them is gone behind it."""
    for registry in (COLLECTIVES, SCHEDULES, SOLVERS, TOOLS):
        monkeypatch.setattr(registry, "_known", dict(registry))
