"""What goes wrong on one rank ends all in time, with the first error named; an end is no error."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.distributed.by_hand import LIMIT_S, Ended, run

SCRIPT = Path(__file__).parent / "trial.py"
LIMITS = {"AUTOPAR_HEARTBEAT_S": "8", "AUTOPAR_TIMEOUT_S": "40"}
BROKEN = "ValueError: broken on purpose"
SILENT = "ended without a message: killed"
EARLY = "rank {rank} ended after 3 calls of its parallel models, while this rank is in call 4"
OTHER = "Ranks are out of step: call 4 is {call}"
BARRIER = "waits in torch.distributed.barrier() at"
WORDS = {
    "raise": BROKEN,
    "interrupt": "KeyboardInterrupt",
    "sigterm": SILENT,
    "kill": SILENT,
    "kill_early": SILENT,
    "segfault": SILENT,
    "abort": SILENT,
    "kill_in_thread": SILENT,
    "kill_with_children": SILENT,
    "os_exit_0": SILENT,
    "os_exit_3": SILENT,
    "exit_0": EARLY,
    "exit_1": EARLY,
    "exit_text": EARLY,
    "destroy_and_exit": EARLY,
    "stop": "has been stopped for 8 s",
    "loader_fork": "no such sample",
    "loader_spawn": "no such sample",
    "other_hook": BROKEN,
    "memory": "RuntimeError",
    "fewer_steps": EARLY,
}
"""What the other rank says."""
ALONE = {
    "evaluate_alone": OTHER.format(call="an evaluation on rank"),
    "save_alone": OTHER.format(call="save on rank"),
    "full_state_dict_alone": OTHER.format(call="full_state_dict on rank"),
    "load_alone": OTHER.format(call="a load of weights on rank"),
    "save_alone_then_barrier": BARRIER,
    "state_alone_then_barrier": BARRIER,
    "fewer_then_evaluate": OTHER.format(call="an evaluation on rank"),
}
"""What one of them says, and both end."""
ENDS = (
    "plain", "destroy", "later", "destroy_later", "later_holding_the_lock", "all_exit_0", "atexit",
    "slow_between", "holding_the_lock", "slow_plan", "in_thread", "in_fork", "loader",
    "forked_child_ends", "stopped_shortly",
)  # fmt: skip
ALWAYS = (
    ("fsdp", "exit_0", 0),
    ("ddp", "evaluate_alone", 1),
    ("ddp", "plain", 1),
    ("ddp", "kill", 1),
    ("nothing", "stop", 1),
    ("ddp", "later", 1),
)
PRESETS = ("ddp", "fsdp", "stages")


def cases(hows: Iterable[str], presets: tuple[str, ...]) -> list[object]:
    """Every third kind on one rank, the presets in turn; `benchmarks/faults.py` has the product."""
    found: list[object] = []
    for number, how in enumerate(hows):
        turn = number // 3
        case = (presets[turn % len(presets)], how, turn % 2)
        extra = [c for c in ALWAYS if c[1] == how]
        found += dict.fromkeys((*extra, case) if number % 3 == 1 else extra)
    return found


def ended(preset: str, how: str, failing: int) -> list[Ended]:
    return run(SCRIPT, [preset, how, str(failing)], 2, **LIMITS)


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "how", "failing"), cases(WORDS, (*PRESETS, "nothing")))
def test_the_other_says_why(preset: str, how: str, failing: int) -> None:
    found = ended(preset, how, failing)
    other = found[1 - failing]
    assert other.status not in (0, None), found
    assert WORDS[how].format(rank=failing) in other.error, other.error
    assert other.seconds < LIMIT_S


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "how", "failing"), cases(ALONE, PRESETS))
def test_one_that_calls_alone(preset: str, how: str, failing: int) -> None:
    found = ended(preset, how, failing)
    assert all(each.status not in (0, None) for each in found), found
    assert all(ALONE[how] in each.error for each in found), found


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "how", "failing"), cases(ENDS, (*PRESETS, "nothing")))
def test_an_end_is_no_error(preset: str, how: str, failing: int) -> None:
    found = ended(preset, how, failing)
    assert [each.status for each in found] == [0, 0], found
    assert not any("autopar:" in each.error for each in found), found


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 1])
def test_a_call_on_one_rank_only(failing: int) -> None:
    alone = ended("ddp", "one_rank_only", failing)[failing]
    assert alone.status not in (0, None)
    assert "RankFailedError" in alone.error, alone.error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "how"), [("ddp", "again"), ("fsdp", "again_kept"), ("stages", "again_kept")]
)
def test_a_group_made_again(preset: str, how: str) -> None:
    found = ended(preset, how, 1)
    assert [each.status for each in found] == [0, 0], found
    assert not any("autopar:" in each.error for each in found), found


@pytest.mark.slow
def test_a_plan_that_fails() -> None:
    for each in ended("fsdp", "plan_fails", 0):
        assert each.status not in (0, None)
        assert "broken on purpose" in each.error
