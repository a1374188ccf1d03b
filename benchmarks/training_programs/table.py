"""What blocks of programs were, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Programs, commits, failures; and how often each action, layout and number of ranks came."""
    failures = [failure for row in rows for failure in row["failures"]]
    lines = [
        f"programs  {sum(row['programs'] for row in rows)} in {len(rows)} blocks",
        f"failures  {len(failures)}",
        f"seconds   {sum(row['seconds'] for row in rows):.0f}",
    ]
    for key, name in (("commit", "programs"), ("date", "programs")):
        counts: Counter[str] = Counter()
        for row in rows:
            counts[row[key]] += row[name]
        lines += _section(key, counts)
    for key in ("ranks", "layouts", "settings", "actions"):
        counts = Counter()
        for row in rows:
            counts.update(row[key])
        lines += _section(key, counts)
    return "\n".join(lines)


def _section(title: str, counts: Counter[str]) -> list[str]:
    return ["", title, *(f"  {name:24}{count:8}" for name, count in counts.most_common())]
