"""Every schedule that has a name, at many sizes: valid, without deadlock, as large as sources say."""

from __future__ import annotations

import pytest

from autopar.errors import InputError, ScheduleError
from autopar.pipeline.schedules import SCHEDULES, Edge, Schedule, build, check, lower
from autopar.pipeline.schedules.interleaved import interleaved
from autopar.pipeline.schedules.kept import most_kept
from autopar.pipeline.schedules.pipedream_2bw import pipedream_2bw

WORKERS = (1, 2, 3, 4, 6)
MICROBATCHES = (1, 2, 3, 5, 8, 12)


def built(name: str) -> list[Schedule]:
    """Those sizes that the schedule exists for."""
    found = []
    for workers in WORKERS:
        for microbatches in MICROBATCHES:
            if name == "chimera" and workers % 2:
                continue
            if name == "dualpipe-v" and microbatches < 2 * workers:
                continue
            if name == "pipedream-2bw" and microbatches % workers:
                continue
            found.append(build(name, workers, microbatches))
    return found


@pytest.mark.parametrize("name", SCHEDULES)
def test_valid(name: str) -> None:
    for schedule in built(name):
        assert schedule.name == name
        assert schedule.asynchronous == SCHEDULES[name].asynchronous
        check(schedule)


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_deadlock_with_blocking_sends(name: str) -> None:
    """Along a chain, and with every stage feeding every later one."""
    for schedule in built(name):
        check(lower(schedule))
        stages = range(schedule.stages)
        all_edges = tuple(Edge(a, b) for b in stages for a in range(b))
        check(lower(schedule, all_edges), all_edges)


@pytest.mark.parametrize("workers", range(1, 6))
@pytest.mark.parametrize("rounds", (1, 2, 3, 4))
def test_interleaved_takes_any_number_of_microbatches(workers: int, rounds: int) -> None:
    for microbatches in range(1, 4 * workers + 1):
        check(lower(interleaved(workers, microbatches, rounds * workers)))


def kept(schedule: Schedule, until_input: bool = False) -> list[float]:
    return list(most_kept(schedule, 0.0 if until_input else 1.0))


@pytest.mark.parametrize("p", (2, 4, 6))
@pytest.mark.parametrize("m", (12, 24))
def test_memory_formulas(p: int, m: int) -> None:
    """Microbatches (of one stage) that are kept at most, by worker."""
    workers = range(p)
    # GPipe keeps all: arXiv:1811.06965, section 2.3 (without rematerialization).
    assert kept(build("gpipe", p, m)) == [m] * p
    # 1F1B: arXiv:2006.09503, section 3.2; by stage, DAPPLE, arXiv:2007.01045, section 3.2.
    assert kept(build("1f1b", p, m)) == [p - w for w in workers]
    # Interleaved: p - 1 round trips ahead, v - 1 groups, one: arXiv:2104.04473, section 2.2;
    # in stages of 1/v: (1 + (p - 1) / (p v)) times the p microbatches of 1F1B on the first worker.
    for v in (2, 3):
        counts = kept(interleaved(p, m, v * p))
        assert counts == [(v - 1) * p + 2 * (p - 1 - w) + 1 for w in workers]
        assert counts[0] / v == pytest.approx(p * (1 + (p - 1) / (p * v)))
    # ZB-H1 and ZB-H2: arXiv:2401.10241, table 1 (p M_B and (2 p - 1) M_B).
    assert max(kept(build("zb-h1", p, m))) == p
    assert max(kept(build("zb-h2", p, m))) == 2 * p - 1
    assert kept(build("zb-h1", p, m), until_input=True) == [p - w for w in workers]
    assert kept(build("zb-h2", p, m), until_input=True) == [2 * (p - w) - 1 for w in workers]
    # ZB-V: 2 p stages of half the size on each worker, as 1F1B: arXiv:2401.10241, section 6.
    assert kept(build("zb-v", p, m)) == [2 * p] * p
    # Chimera: D/2 + 1 to D of D stages: arXiv:2107.06925, table 2.
    counts = kept(build("chimera", p, m))
    assert (min(counts), max(counts)) == (min(p, p // 2 + 1), p)
    assert counts == counts[::-1]


def test_dualpipe_v_keeps_one_more_than_a_microbatch_per_stage() -> None:
    """PP + 1 of stages half as large, DeepSeek-AI's DualPipe, README; each worker has two stages."""
    for p in (2, 4, 6):
        assert kept(build("dualpipe-v", p, 3 * p)) == [2 * p + 1] * p


def test_chimera_holds_each_stage_twice() -> None:
    assert build("chimera", 4, 8).holders == ((0, 3), (1, 2), (1, 2), (0, 3))


def test_v_shape() -> None:
    for name in ("zb-v", "dualpipe-v"):
        assert build(name, 3, 6).held == ((0, 5), (1, 4), (2, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("1f1b", 0, 8), "at least one worker"),
        (("1f1b", 4, 0), "at least one worker and one microbatch"),
        (("1f1b", 4, 8, 8), "1f1b has 4 stages on 4 workers, not 8; choose interleaved"),
        (("zb-v", 4, 8, 4), "zb-v has 8 stages on 4 workers"),
        (("interleaved", 4, 8, 6), "6 stages do not divide by 4 workers; take 4 stages"),
        (("chimera", 3, 8), "an even number of workers, not 3"),
        (("dualpipe-v", 4, 7), "needs at least 8 microbatches, not 7"),
        (("pipedream-2bw", 4, 6), r"divide the number of microbatches \(6\)"),
    ],
)
def test_what_cannot_be_built(arguments: tuple[str, int, int], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        build(*arguments)


def test_what_is_not_known() -> None:
    with pytest.raises(
        InputError, match=r"No schedule is called '1f2b'\. Did you mean '1f1b'\? There"
    ):
        build("1f2b", 4, 8)


def test_2bw_batches_are_no_smaller_than_the_pipeline() -> None:
    with pytest.raises(ScheduleError, match=r"at least the number of workers \(4\)"):
        pipedream_2bw(4, 8, per_update=2)
