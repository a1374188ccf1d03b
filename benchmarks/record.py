"""Rows of a benchmark that goes on where its JSON ends: each with the commit and the date of its run."""

from __future__ import annotations

import datetime
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Row = dict[str, Any]


class Record:
    """The rows of a file, by name, in the order of `names`."""

    def __init__(self, file: Path, names: Sequence[str]) -> None:
        self._file, self._names = file, tuple(names)
        self.rows: dict[str, Row] = json.loads(file.read_text()) if file.is_file() else {}

    @property
    def missing(self) -> list[str]:
        """What has not been run."""
        return [name for name in self._names if name not in self.rows]

    def keep(self, name: str, row: Row) -> None:
        """Write a row; the file is whole after each."""
        stamp = {"commit": commit(), "date": datetime.date.today().isoformat()}
        self.rows[name] = row | stamp
        ordered = {key: self.rows[key] for key in self._names if key in self.rows}
        self._file.write_text(json.dumps(ordered, indent=1) + "\n")

    def show(self, *columns: str) -> None:
        """A table of these entries; a list is shown by its length."""
        made = Table("", *columns, "commit", "date")
        for name, row in self.rows.items():
            cells = (row.get(each, "") for each in (*columns, "commit", "date"))
            made.add_row(name, *(str(len(c) if isinstance(c, dict | list) else c) for c in cells))
        Console(width=120).print(made)


def commit() -> str:
    """The checkout's, short."""
    words = ["git", "rev-parse", "--short", "HEAD"]
    where = Path(__file__).parent
    return subprocess.run(
        words, cwd=where, capture_output=True, text=True, check=True
    ).stdout.strip()
