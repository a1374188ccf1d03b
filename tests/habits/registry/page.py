"""Writes docs/habits.md: ``python -m tests.habits.registry.page``."""

from __future__ import annotations

from pathlib import Path

from tests.habits.registry import HABITS, SECTIONS
from tests.habits.registry.habit import DIFFERS, EQUAL, NOT_TRIED, RAISES, Habit

PAGE = Path(__file__).parents[3] / "docs" / "habits.md"
HEAD = """\
# Habits

What people do with models in DDP and FSDP, and what a model from `autopar.parallelize` does: the same
as in one process, or an error that says what to do. {count} programs stand behind this page; {equal} of
them are recorded as equal. `tests/habits/registry` holds the programs and writes this page; its slow
tests run each in one process, some in `DistributedDataParallel`, and all under the presets `ddp`, `fsdp`
and `megatron`, the solver's own plan and two stages, on one, two and four ranks, and compare weights,
buffers, gradients and what the program reads within 1e-9 in float64.

Run so far, once each on two ranks (2026-11-28): all of DDP's column; most of the verdicts under `ddp`;
those of the first five sections under `fsdp`; about half of them with stages. `megatron`, the solver's
plan, one and four ranks are still to be run.

- **Verdict**: *equal*, or the words of the error.
- **With stages**: where a pipeline (`pipeline=2`) does something else.
- **DDP**: weights and gradients of the same program there; a dash where it was not tried.
- **Instead**: what to do; ✓ marks what runs as a program, and ends as the habit in one process.
"""
WORDS = {EQUAL: "equal", DIFFERS: "differs", RAISES: "raises", NOT_TRIED: "—"}


def page() -> str:
    """The whole page."""
    equal = sum(not each.says and not each.in_stages for each in HABITS.values())
    parts = [HEAD.format(count=len(HABITS), equal=equal)]
    for title, habits in SECTIONS.items():
        head = (
            f"## {title}\n\n| Habit | Verdict | With stages | DDP | Instead |\n"
            + "| --- " * 5
            + "|"
        )
        parts.append("\n".join([head, *map(_row, habits)]) + "\n")
    return "\n".join(parts)


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
