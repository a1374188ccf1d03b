"""What autopar keeps for itself is private, and what was emitted is what runs."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

import autopar
from autopar.errors import InputError
from autopar.runtime.program import load
from autopar.utils.cache import cache_directory, keep
from tests.cli.commands import fails
from tests.files.test_hostile import BATCH, Small


def test_the_text_that_was_agreed_on_is_what_runs(tmp_path: Path) -> None:
    """Neither the file, which has changed since, nor a byte-code file beside it."""
    made = autopar.compile_model(Small(), 1, BATCH, hardware="cpu")
    path = tmp_path / "emitted.py"
    path.write_text("raise SystemExit('the file ran')")
    py_compile.compile(str(path), doraise=True)
    program = load(made.plan, made.graph, made.source, path)
    assert program.model.__name__ == made.graph.name
    with pytest.raises(Exception, match="x") as raised:
        program.model.forward("x")  # type: ignore[arg-type]
    shown = "".join(__import__("traceback").format_exception(raised.value))
    assert "the file ran" not in shown


def test_the_cache_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOPAR_CACHE", str(tmp_path / "a" / "b"))
    assert cache_directory().stat().st_mode & 0o777 == 0o700
    (tmp_path / "a" / "b").chmod(0o777)
    with pytest.raises(InputError, match="Everybody may write to the cache"):
        cache_directory()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_cache_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOPAR_CACHE", str(tmp_path))
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(InputError, match="belongs to another user"):
        cache_directory()


@pytest.mark.parametrize("place", ["/proc/autopar", "/dev/null/x", "/dev/full"])
def test_homes_that_take_no_files(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOPAR_CACHE", place)
    with pytest.raises(InputError, match="AUTOPAR_CACHE"):
        keep("x = 1", "x.py")


def test_odd_cache_homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOPAR_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    for odd in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", odd)
        assert cache_directory() == tmp_path / ".cache" / "autopar"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "autopar"


def test_no_home_at_all() -> None:
    """A user that the system does not know, without $HOME."""
    code = (
        "import os; from pathlib import Path\n"
        "Path.home = classmethod(lambda cls: (_ for _ in ()).throw(RuntimeError('no home')))\n"
        "from autopar.utils.cache import cache_directory\n"
        "cache_directory()"
    )
    env = {k: v for k, v in os.environ.items() if k not in ("AUTOPAR_CACHE", "XDG_CACHE_HOME")}
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert "InputError: There is no home directory" in ended.stderr


WRITES = ("plan", "tests.cli.factories:good", "--mesh", "2", "--hardware", "h100", "-o")


@pytest.mark.parametrize("place", ["/proc/x.json", "/dev/full", "{}/no/such/x.json", "/dev/null/x"])
def test_places_where_commands_cannot_write(place: str, tmp_path: Path) -> None:
    said = fails(*WRITES, place.format(tmp_path))
    assert "annot" in said and "Traceback" not in said
    assert not list(tmp_path.iterdir())
