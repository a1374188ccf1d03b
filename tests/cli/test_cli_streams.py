"""A console that takes no UTF-8 gets every word and every drawing all the same."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from autopar.cli.app import main
from autopar.cli.streams import lenient
from tests.render.text import hand_made


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_drawing_is_printed(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(hand_made.pipeline().to_json())
    ended: list[int] = []
    written = {name: io.BytesIO() for name in ("stdout", "stderr")}
    for name, raw in written.items():
        monkeypatch.setattr(sys, name, io.TextIOWrapper(raw, encoding))
    monkeypatch.setattr(sys, "argv", ["autopar", "simulate", str(path)])
    monkeypatch.setattr("os._exit", ended.append)
    main()
    said = written["stdout"].getvalue().decode(encoding)
    assert ended == [0] and "as planned: a step takes" in said
    assert "worker 0" in said and ("█" if encoding == "utf-8" else "88") in said
    waits = "." if encoding == "ascii" else "·"
    assert f"{waits} waits" in said or f"{waits} nothing" in said


def test_what_has_no_likeness_is_a_question_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(raw, "ascii"))
    monkeypatch.setattr(sys, "argv", ["autopar", "show", "日本.json"])
    monkeypatch.setattr("os._exit", lambda code: None)
    main()
    assert raw.getvalue().decode("ascii").startswith("error: ")
    assert "??.json" in raw.getvalue().decode("ascii")


def test_a_pipe_in_a_files_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was forked for a command has another file behind the same stream."""
    with (tmp_path / "file").open("w", encoding="ascii") as stream:
        reading, writing = os.pipe()
        os.dup2(writing, stream.fileno())
        os.close(writing)
        monkeypatch.setattr(sys, "stdout", stream)
        lenient()
        print("█", flush=True)
    assert os.read(reading, 9) == b"8\n"
    os.close(reading)
