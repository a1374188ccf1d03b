"""What prints, parses."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.errors import ScheduleError
from autopar.pipeline.schedules import Action, Kind, Schedule

NUMBERS = st.integers(0, 1000)
ACTIONS = st.builds(
    Action, st.sampled_from(get_args(Kind)), NUMBERS, NUMBERS, st.none() | NUMBERS, NUMBERS
)


@given(ACTIONS)
def test_actions_parse_back(action: Action) -> None:
    assert Action.parse(str(action)) == action


@given(st.lists(st.lists(ACTIONS).map(tuple), max_size=4).map(tuple), st.booleans())
def test_schedules_parse_back(workers: tuple[tuple[Action, ...], ...], asynchronous: bool) -> None:
    schedule = Schedule("any", 3, 4, workers, asynchronous)
    assert Schedule.parse(str(schedule)) == schedule


def test_how_they_look() -> None:
    assert str(Action("F", 2, 0)) == "2F0"
    assert str(Action("SEND_B", 3, 1, peer=2)) == "3SEND_B1>2"
    assert str(Action("RECV_B", 2, 1, peer=3)) == "2RECV_B1<3"
    assert str(Action("F", 2, 5, version=1)) == "2F5@1"


@pytest.mark.parametrize("text", ["", "F0", "2X0", "2F", "2F0>", "2RECV_F0>1", "02F0", "2F0@0"])
def test_what_cannot_be_read(text: str) -> None:
    with pytest.raises(ScheduleError, match="Cannot read the action"):
        Action.parse(text)


@pytest.mark.parametrize("text", ["", "1f1b", "1f1b stages=x microbatches=2"])
def test_heads_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ScheduleError, match="a schedule begins like"):
        Schedule.parse(text)


def test_lines_out_of_order() -> None:
    with pytest.raises(ScheduleError, match="worker 0 begins with '0:'"):
        Schedule.parse("any stages=1 microbatches=1\n1: 0F0 0B0")
