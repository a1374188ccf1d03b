"""Writes docs/habits.md: ``python -m tests.habits.registry.page``."""

from __future__ import annotations

import json
from pathlib import Path

from tests.habits.registry import HABITS, SECTIONS
from tests.habits.registry.habit import DIFFERS, EQUAL, NOT_TRIED, RAISES, Habit

PAGE = Path(__file__).parents[3] / "docs" / "habits.md"
RUN = Path(__file__).parents[3] / "benchmarks" / "habits.json"
WAYS = {
    "DDP": "`DistributedDataParallel`",
    "solver": "the solver's plan",
    "stages": "two stages",
    "heavy": "`ddp`, programs that take long",
}
HEAD = """\
# Habits

This page lists what people do with models under DDP and FSDP. A model from `autopar.parallelize` gives
the result of one process, or raises an error that says what to do. [Limits](limits.md) lists the
exceptions. The page has {count} programs; {equal} of them equal one process both with and without
stages. `tests/habits/registry` holds the programs and writes this page.

`python benchmarks/habits.py` runs each program in one process and in every way of the table. It
compares weights, buffers, gradients and what the program reads, to 1e-9 in float64. `make slow` runs a
third of them.

{ran}

- **Verdict**: *equal*, or the words of the error.
- **With stages**: where a pipeline (`pipeline=2`) does something else.
- **DDP**: weights and gradients of the same program there; a dash where it was not tried.
- **Instead**: what to do; ✓ marks what runs as a program, and ends as the habit in one process.
"""
WORDS = {EQUAL: "equal", DIFFERS: "differs", RAISES: "raises", NOT_TRIED: "—"}


def page() -> str:
    """The whole page."""
    equal = sum(not each.says and not each.in_stages for each in HABITS.values())
    parts = [HEAD.format(count=len(HABITS), equal=equal, ran=_ran())]
    for title, habits in SECTIONS.items():
        head = (
            f"## {title}\n\n| Habit | Verdict | With stages | DDP | Instead |\n"
            + "| --- " * 5
            + "|"
        )
        parts.append("\n".join([head, *map(_row, habits)]) + "\n")
    return "\n".join(parts)


def _ran() -> str:
    """What was run, when, and how it ended."""
    lines = [
        "| way | ranks | equal, as recorded | refused, as recorded | otherwise | commit | date |",
        "| --- " * 7 + "|",
    ]
    for name, row in json.loads(RUN.read_text()).items():
        way, ranks = name.split(":")
        counts = row["equal"], row["refused"], len(row["otherwise"])
        cells = (WAYS.get(way, f"`{way}`"), ranks, *map(str, counts), row["commit"], row["date"])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _row(habit: Habit) -> str:
    where = f" under `{'`, `'.join(habit.under)}`" if habit.under else ""
    verdict = f"raises{where}: “{habit.says}”" if habit.says else "equal"
    if habit.tolerance > 1e-6:
        verdict += f" within {habit.tolerance:.0e}"
    stages = "not tried" if "stages" in habit.skip else ""
    if not habit.skip and habit.in_stages is not None and habit.in_stages != habit.says:
        stages = f"raises: “{habit.in_stages}”" if habit.in_stages else "equal"
    instead = habit.instead + (" ✓" if habit.remedy else "")
    cells = (habit.name, verdict, stages, WORDS[habit.ddp], instead)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(page())
