"""Every habit ends as its record says: as in one process, or with the refusal's words."""

from __future__ import annotations

import pytest

from tests.daily import daily
from tests.habits.registry import HABITS, SECTIONS, run
from tests.habits.registry.habit import EQUAL, RAISES, Habit
from tests.habits.registry.page import PAGE, page
from tests.pool import Pool, WorkerError

LIGHT = [habit for habit in HABITS.values() if not habit.heavy]
DAILY, PART, RANKS = 6, 3, 2
"""One habit of so many is tried every day under a way."""
LIMIT_S = 60.0


def test_records() -> None:
    assert len(HABITS) == sum(map(len, SECTIONS.values())), "two habits have one name"
    assert len(HABITS) >= 150
    for habit in HABITS.values():
        habit.check()


def test_page() -> None:
    assert PAGE.read_text() == page(), "write it: python -m tests.habits.registry.page"


def wrong(habit: Habit, way: str, found: str, ranks: int) -> bool:
    """Whether a verdict is another than the record's; alone, a refused habit may be equal."""
    if way == run.DDP:
        return not found.startswith(habit.ddp)
    words = habit.expected(way)
    if not words or (ranks == 1 and found == EQUAL):
        return found != EQUAL
    return not (found.startswith(RAISES) and words in found)


def tried(pool: Pool, habits: list[Habit], way: str, ranks: int, limit_s: float = LIMIT_S) -> None:
    """Raise where one ends otherwise, or unlike on two ranks; all of them are tried."""
    others = {}
    for habit in (each for each in habits if way not in each.skip):
        try:
            found = pool.run(ranks, run.verdicts, way, [habit.name], limit_s=limit_s)
            if any(wrong(habit, way, each[habit.name], ranks) for each in found):
                others[habit.name] = [each[habit.name] for each in found]
        except WorkerError as error:
            others[habit.name] = [str(error)]
    assert not others, "\n".join(f"{name}: {how}" for name, how in others.items())


@pytest.mark.thorough
@pytest.mark.parametrize("way", daily(run.AUTOPAR, ["fsdp", "stages"]))
def test_some(pool: Pool, way: str) -> None:
    tried(pool, LIGHT[run.AUTOPAR.index(way) :: DAILY * len(run.AUTOPAR)], way, RANKS)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("way", run.AUTOPAR)
def test_a_part(pool: Pool, way: str) -> None:
    """Every third habit each way on two ranks; `benchmarks/habits.py` has all, on one and four too."""
    tried(pool, LIGHT[run.AUTOPAR.index(way) % PART :: PART], way, RANKS)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_in_ddp(pool: Pool) -> None:
    tried(pool, [habit for habit in LIGHT if habit.ddp], run.DDP, 2)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_heavy(pool: Pool) -> None:
    tried(pool, [habit for habit in HABITS.values() if habit.heavy], "ddp", 2, limit_s=400.0)
