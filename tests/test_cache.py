"""Files are whole or as they were: what breaks off in the middle of writing leaves nothing behind."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest

from autopar.utils.cache import write
from tests.cli.commands import fails, ok, run

OLD, NEW = "the old file\n", "the new file, which is longer than one line\n" * 3
PLAN = ("plan", "tests.cli.factories:good", "--mesh", "2", "--hardware", "h100", "-o")
opened, replaced = Path.open, os.replace


class _Broken(io.TextIOWrapper):
    """Half of a text is on the disk when somebody presses Ctrl-C."""

    def write(self, text: str) -> int:
        super().write(text[: len(text) // 2])
        self.flush()
        raise KeyboardInterrupt


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """New files are written by half: those that were."""
    begun: list[Path] = []

    def open_new(path: Path, mode: str = "r", **how: Any) -> Any:
        if "x" not in mode:
            return opened(path, mode, **how)
        begun.append(path)
        return _Broken(io.BufferedWriter(io.FileIO(path, mode)), **how)

    monkeypatch.setattr(Path, "open", open_new)
    return begun


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Nothing takes the place of the file."""

    def refuse(source: Any, target: Any) -> None:
        if Path(target) == path:
            assert len(Path(source).read_text()) > len(OLD), "it was written to its end"
            raise OSError(errno.EIO, "Input/output error")
        replaced(source, target)

    monkeypatch.setattr(os, "replace", refuse)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.json"


def stands(path: Path, text: str) -> bool:
    """It alone lies there, as it was."""
    return path.read_text() == text and list(path.parent.iterdir()) == [path]


def test_a_file_is_replaced(path: Path) -> None:
    for text in (NEW, OLD):
        assert write(text, path) == path and stands(path, text)


@pytest.mark.usefixtures("refused")
def test_what_cannot_be_replaced_stays(path: Path) -> None:
    path.write_text(OLD)
    with pytest.raises(OSError, match="Input/output error"):
        write(NEW, path)
    assert stands(path, OLD)


def test_an_interruption_leaves_the_old_file(path: Path, interrupted: list[Path]) -> None:
    path.write_text(OLD)
    with pytest.raises(KeyboardInterrupt):
        write(NEW, path)
    assert len(interrupted) == 1 and interrupted[0] != path
    assert stands(path, OLD)


def test_an_interruption_leaves_no_half_of_a_new_file(path: Path, interrupted: list[Path]) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(NEW, path)
    assert interrupted and not list(path.parent.iterdir())


@pytest.mark.usefixtures("refused")
def test_a_plan_that_cannot_be_saved_leaves_the_one_before(path: Path) -> None:
    path.write_text(OLD)
    assert "Cannot write" in fails(*PLAN, path) and stands(path, OLD)


def test_a_plan_whose_saving_is_interrupted_leaves_the_one_before(
    path: Path, interrupted: list[Path]
) -> None:
    path.write_text(OLD)
    assert run(*PLAN, path).exit_code != 0
    assert [each.parent for each in interrupted] == [path.parent] and stands(path, OLD)


def test_a_plan_takes_the_place_of_the_one_before(path: Path) -> None:
    path.write_text(OLD)
    assert f"wrote {path}" in ok(*PLAN, path)
    assert path.read_text() != OLD and list(path.parent.iterdir()) == [path]
