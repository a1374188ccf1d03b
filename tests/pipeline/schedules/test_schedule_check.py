"""Each clause of `check` fires, and names worker, position and action."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from autopar.errors import ScheduleError
from autopar.pipeline.schedules import Action, Edge, Schedule, build, chain, check, lower
from autopar.pipeline.schedules.collectives import completing
from tests.pipeline.schedules.drawing import schedules

Edges = tuple[Edge, ...]


def written(
    *lines: str, stages: int = 2, microbatches: int = 1, asynchronous: bool = False
) -> Schedule:
    """A schedule from its workers' lists."""
    head = f"drawn stages={stages} microbatches={microbatches}" + " asynchronous" * asynchronous
    body = (f"{worker}: {line}" for worker, line in enumerate(lines))
    return Schedule.parse("\n".join((head, *body)))


@given(schedules())
def test_random_schedules_pass_and_lower(drawn: tuple[Schedule, Edges]) -> None:
    schedule, edges = drawn
    check(schedule, edges)
    lowered = lower(schedule, edges)
    check(lowered, edges)
    for before, after in zip(schedule.workers, lowered.workers, strict=True):
        assert before == tuple(a for a in after if a.kind in ("F", "B", "I", "W"))


@given(schedules())
def test_anything_left_out_is_missed(drawn: tuple[Schedule, Edges]) -> None:
    schedule, edges = drawn
    for worker, actions in enumerate(schedule.workers):
        for position in range(len(actions)):
            rest = actions[:position] + actions[position + 1 :]
            lists = (*schedule.workers[:worker], rest, *schedule.workers[worker + 1 :])
            with pytest.raises(ScheduleError):
                check(replace(schedule, workers=lists), edges)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (written("0F0 2F0 0B0", "1F0 1B0"), "worker 0, position 1: 2F0: there are only 2 stages"),
        (written("0F0 0F1 0B0", "1F0 1B0"), "position 1: 0F1: there are only 1 microbatches"),
        (written("0F0>1 0B0", "1F0 1B0"), "position 0: 0F0>1: transfers name another stage"),
        (written("0F0 0SEND_F0 0B0", "1F0 1B0"), "0SEND_F0: transfers name another stage"),
        (written("0F0 0B0 0REDUCE0@1", "1F0 1B0"), "only F, B, I and W use a version"),
        (written("0F0 0B0 0U0", "1F0 1B0"), "position 2: 0U0: only asynchronous"),
        (written("0F0 0B0 0F0", "1F0 1B0"), "position 0: 0F0 occurs more than once"),
        (written("0F0 1B0", "1F0 0B0"), "worker 0, position 1: 1B0: its forward is on worker 1"),
        (written("0F0 0B0", "1B0"), "has no 1F0"),
        (written("0F0 0I0", "1F0 1B0"), "0 0B0, 1 0I0 and 0 0W0; a backward is either"),
        (written("0F0 0B0 0W0", "1F0 1B0"), "1 0B0, 0 0I0 and 1 0W0"),
        (written("0F0 0B0 0I0 0W0", "1F0 1B0"), "1 0B0, 1 0I0 and 1 0W0"),
        (written("0B0 0F0", "1F0 1B0"), "worker 0, position 0: 0B0 waits for 0F0, 1B0"),
        (written("0F0 0W0 0I0", "1F0 1B0"), "worker 0, position 1: 0W0 waits for 0I0"),
        (written("1F0 1B0 0F0 0B0"), "worker 0, position 0: 1F0 waits for 0F0"),
        (written("0F0 0B0", "1F0@1 1B0@1"), "1F0@1: only 0 updates were made before"),
    ],
)  # fmt: skip
def test_clauses(schedule: Schedule, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        check(schedule)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0F0 0B0 0U1", "position 2: 0U1: the next update of this stage is 0"),
        ("0F0 0B0 0U0 0U1", "position 3: 0U1: there is no new gradient"),
        ("0F0 0B0", "position 1: 0B0: no update follows"),
        ("0F0 0B0@1 0U0", "position 1: 0B0@1: only 0 updates were made before"),
        ("0F0 0F1 0B0 0U0 0B1@1 0U1", "position 4: 0B1@1: its forward used version 0"),
    ],
)
def test_clauses_of_versions(line: str, message: str) -> None:
    microbatches = 2 if "F1" in line else 1
    with pytest.raises(ScheduleError, match=message):
        check(written(line, stages=1, microbatches=microbatches, asynchronous=True))


def test_edges_must_join_stages() -> None:
    for edge in (Edge(0, 0), Edge(0, 2), Edge(-1, 1)):
        with pytest.raises(ScheduleError, match="does not join two of the 2 stages"):
            check(build("1f1b", 2, 2), (edge,))


def test_two_workers_that_wait_for_each_other() -> None:
    """Both want the other's second microbatch first."""
    schedule = written("0F0 0F1 1F1 1B1 0B1 0B0", "1F0 1B0", microbatches=2)
    check(schedule)
    crossed = written("2F0 0F0 0B0 2B0", "1F0 1B0", stages=3)
    with pytest.raises(ScheduleError, match=r"worker 0, position 0: 2F0 waits for 1F0\n.*worker 1"):
        check(crossed)


def test_skip_connections_are_waited_for() -> None:
    schedule = written("0F0 2F0 2B0 0B0", "1F0 1B0", stages=3)
    check(schedule, (Edge(0, 2),))
    with pytest.raises(ScheduleError, match="1F0 waits for 2F0"):
        check(written("0F0 1F0 1B0 0B0", "2F0 2B0", stages=3), (Edge(0, 1), Edge(2, 1), Edge(1, 2)))


def test_integers_send_no_gradient_back() -> None:
    schedule = written("0F0 0B0 1F0 1B0")
    check(schedule, (Edge(0, 1, gradient=False),))
    with pytest.raises(ScheduleError, match="0B0 waits for 1B0"):
        check(schedule)


def test_memory() -> None:
    check(build("1f1b", 4, 8), limits=[4, 3, 2, 1])
    with pytest.raises(
        ScheduleError, match=r"worker 1, position 2: after 1F2 it holds 3 .* limit of 2"
    ):
        check(build("1f1b", 4, 8), limits=[4, 2, 2, 1])
    with pytest.raises(ScheduleError, match="worker 0, position 4: after 0F4 it holds 5"):
        check(build("gpipe", 4, 8), limits=4)


def without(schedule: Schedule, worker: int, action: str) -> Schedule:
    rows = [list(row) for row in schedule.workers]
    rows[worker].remove(Action.parse(action))
    return replace(schedule, workers=tuple(map(tuple, rows)))


def swapped(schedule: Schedule, worker: int, first: str, second: str) -> Schedule:
    """The two actions have changed places."""
    row = list(schedule.workers[worker])
    a, b = row.index(Action.parse(first)), row.index(Action.parse(second))
    row[a], row[b] = row[b], row[a]
    return replace(
        schedule, workers=(*schedule.workers[:worker], tuple(row), *schedule.workers[worker + 1 :])
    )


def test_transfers_are_those_of_the_edges() -> None:
    lowered = lower(build("1f1b", 3, 2))
    check(lowered)
    for worker, action in ((0, "0SEND_F0>1"), (1, "1RECV_F0<0"), (2, "2SEND_B1>1")):
        with pytest.raises(ScheduleError, match=f"worker {worker}: {action} must occur once"):
            check(without(lowered, worker, action))
    with pytest.raises(ScheduleError, match="no edge between workers needs"):
        check(lower(build("1f1b", 3, 2), (*chain(3), Edge(0, 2))))
    with pytest.raises(ScheduleError, match="0SEND_F0>1 must come after 0F0"):
        check(swapped(lowered, 0, "0F0", "0SEND_F0>1"))
    with pytest.raises(ScheduleError, match="1RECV_F0<0 must come before 1F0"):
        check(swapped(lowered, 1, "1F0", "1RECV_F0<0"))


def test_sends_right_after_and_receives_right_before_would_hang() -> None:
    """Why `lower` puts transfers into one order: 1F1B's neighbours would send to each other."""
    schedule = build("1f1b", 2, 3)
    lists = []
    for row in schedule.workers:
        made: list[Action] = []
        for action in row:
            other = 1 - action.stage
            to, way = (1, "F") if action.kind == "F" else (0, "B")
            if action.stage == to:
                made.append(Action(f"RECV_{way}", action.stage, action.microbatch, other))  # type: ignore[arg-type]
            made.append(action)
            if action.stage != to:
                made.append(Action(f"SEND_{way}", action.stage, action.microbatch, other))  # type: ignore[arg-type]
        lists.append((*made, Action("REDUCE", made[0].stage, 0)))
    hanging = replace(schedule, workers=tuple(lists))
    message = (
        r"hangs where sends wait for their receives:\n"
        r"  worker 0, position 3: 0SEND_F1>1 waits for 1RECV_F1<0 of worker 1\n"
        r"  worker 1, position 3: 1SEND_B0>0 waits for 0RECV_B0<1 of worker 0"
    )
    with pytest.raises(ScheduleError, match=message):
        check(hanging)


def test_collectives_in_another_order_hang() -> None:
    first, second = "0F0 0B0 1F0 1B0", "0F1 1F1 0B1 1B1"
    both = written(f"{first} 0REDUCE0 1REDUCE0", f"{second} 0REDUCE0 1REDUCE0", microbatches=2)
    check(both, ())
    crossed = written(f"{first} 0REDUCE0 1REDUCE0", f"{second} 1REDUCE0 0REDUCE0", microbatches=2)
    message = (
        r"hangs .*\n.* position 4: 0REDUCE0 waits for 0REDUCE0 of worker 1\n.*: 1REDUCE0 waits"
    )
    with pytest.raises(ScheduleError, match=message):
        check(crossed, ())


def test_ties_of_several_workers_have_one_order() -> None:
    """Worker 1 holds a stage of each group."""
    ties = [(0, 1), (2, 3)]
    lowered = lower(written("0F0 0B0", "1F0 2F0 2B0 1B0", "3F0 3B0", stages=4), ties=ties)
    check(lowered, ties=ties)
    assert str(lowered).count("0TIE0") == str(lowered).count("2TIE0") == 2


def test_collectives_are_those_of_the_stages() -> None:
    schedule = build("chimera", 2, 4)
    lowered = lower(schedule, ties=[(0, 1)])
    check(lowered, ties=[(0, 1)])
    for action in ("0REDUCE0", "1REDUCE0", "0TIE0"):
        with pytest.raises(ScheduleError, match=f"worker 0: {action} must occur once, not 0"):
            check(without(lowered, 0, action), ties=[(0, 1)])
    with pytest.raises(ScheduleError, match="0TIE0 sums gradients that this worker does not have"):
        check(lowered)
    with pytest.raises(ScheduleError, match="worker 0: 0TIE0 must occur once"):
        check(lower(schedule), ties=[(0, 1)])
    with pytest.raises(ScheduleError, match=r"0TIE0 comes before \w+, whose gradient it sums"):
        check(swapped(lowered, 1, "1REDUCE0", "0TIE0"), ties=[(0, 1)])
    with pytest.raises(
        ScheduleError, match=r"position .*: 0REDUCE0 comes before 0B1, whose gradient"
    ):
        check(swapped(lower(build("1f1b", 2, 2)), 0, "0B1", "0REDUCE0"))


def test_gradients_are_complete_with_the_last_backward_wherever_their_sum_is() -> None:
    """In two halves or one; a list may sum its stages in another order than they are done."""
    line = "0F0 1F0 0F1 1F1 1B0 0B0 1B1 0I1 0W1 0REDUCE0 1REDUCE0"
    schedule = written(line, microbatches=2)
    check(schedule, (Edge(0, 1),))
    assert completing(schedule.workers[0]) == (Action("B", 1, 1), Action("W", 0, 1))


def test_asynchronous_sums_come_before_their_updates() -> None:
    lowered = lower(build("pipedream", 2, 3))
    check(lowered)
    with pytest.raises(ScheduleError, match="0REDUCE1 comes after 0U1, which needs it"):
        check(swapped(lowered, 0, "0REDUCE1", "0U1"))
    with pytest.raises(ScheduleError, match="0REDUCE1 comes before 0B1"):
        check(swapped(lowered, 0, "0REDUCE1", "0B1"))
    with pytest.raises(ScheduleError, match="0REDUCE1 must occur once"):
        check(without(lowered, 0, "0REDUCE1"))


def test_ties_that_cannot_be() -> None:
    schedule = build("1f1b", 3, 2)
    for ties, message in (
        ([(0, 3)], "cannot share weights"),
        ([(1,)], "cannot share weights"),
        ([(0, 1), (0, 2)], "make them one group"),
    ):
        with pytest.raises(ScheduleError, match=message):
            lower(schedule, ties=ties)
    with pytest.raises(ScheduleError, match="take a synchronous schedule"):
        lower(build("pipedream", 3, 2), ties=[(0, 2)])
