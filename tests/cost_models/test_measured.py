"""Measured times: kept whole and apart, interpolated in a stated way, taken robustly."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cost_models.errors import CostModelError
from cost_models.measured import Call, Database, Pass, Setting, Timed, Times, Work, here
from cost_models.measured.here import processor
from cost_models.measured.timer import Effort, median_of, rows_of

HERE = Setting("some cpu", "cpu", 0.0, "torch 2.13", 1, 2, 4)
ELSEWHERE = replace(HERE, device="another cpu")


def model(work: Work) -> float:
    return work.calls * 1e-6 + work.flops / 1e9 + work.nbytes / 1e10


def call(size: float, family: str = "mm") -> Call:
    forward = Work(2 * size**3, 12 * size**2, "float32", "mm")
    backward = Work(4 * size**3, 24 * size**2, "float32", "mm", "backward")
    return Call("mm", f"{family} {size}", family, forward, backward)


def timed(size: float, ratio: float = 3.0, family: str = "mm") -> Timed:
    """As long as the model says, times a ratio; twice that ratio backward."""
    made = call(size, family)
    assert made.backward is not None
    return Timed(
        made,
        Pass(ratio * model(made.forward), 0.1),
        Pass(2 * ratio * model(made.backward), 0.2),
        9,
        "2026-11-21",
    )


def times(*every: Timed) -> Times:
    return Times(HERE, {each.call.text: each for each in every})


def test_what_was_timed_is_said_as_it_was_timed() -> None:
    known = timed(64)
    answer = times(known, timed(128, 7.0)).of(known.call, model)
    assert answer.source == "measured" and known.backward is not None
    assert (answer.forward_s, answer.backward_s) == (known.forward.seconds, known.backward.seconds)


def test_other_sizes_keep_the_ratio_to_the_roofline() -> None:
    wanted = call(90)
    answer = times(timed(64), timed(128)).of(wanted, model)
    assert answer.source == "interpolated" and wanted.backward is not None
    assert answer.forward_s == pytest.approx(3 * model(wanted.forward))
    assert answer.backward_s == pytest.approx(6 * model(wanted.backward))


def test_what_is_made_of_several_calls_is_compared_as_such(tmp_path: Path) -> None:
    """The roofline of a known size has as many as the wanted one: a database keeps no count."""

    def of_many(made: Call) -> Call:
        assert made.backward is not None
        forward, backward = replace(made.forward, calls=9), replace(made.backward, calls=99)
        return replace(made, forward=forward, backward=backward)

    known, wanted = of_many(call(32)), of_many(call(45))
    assert known.backward is not None and wanted.backward is not None
    passes = Pass(3 * model(known.forward), 0.1), Pass(5 * model(known.backward), 0.1)
    store = Database(tmp_path / "times.sqlite")
    store.write(HERE, [Timed(known, *passes, 9, "2026-11-25")])
    answer = Times(HERE, store.read(HERE)).of(wanted, model)
    assert answer.source == "interpolated"
    assert answer.forward_s == pytest.approx(3 * model(wanted.forward))
    assert answer.backward_s == pytest.approx(5 * model(wanted.backward))


def test_nearer_sizes_count_more() -> None:
    known = times(timed(64, 2.0), timed(128, 8.0))
    ratios = [
        known.of(call(size), model).forward_s / model(call(size).forward) for size in (70, 120)
    ]
    assert 2 < ratios[0] < 4 < ratios[1] < 8


def test_other_families_and_far_sizes_are_modelled() -> None:
    known = times(timed(64))
    for wanted in (call(64, "bmm"), call(512), call(8)):
        answer = known.of(wanted, model)
        assert answer.source == "modelled" and answer.forward_s == model(wanted.forward)


def test_without_a_timed_backward_none_is_interpolated() -> None:
    """A neighbour of which only the forward was timed says nothing of the way back."""
    wanted = call(1.1e6)
    forward_only = replace(timed(1e6), backward=None)
    assert times(forward_only).of(wanted, model).source == "modelled"
    assert times(forward_only, timed(1.2e6)).of(wanted, model).source == "interpolated"


def test_times_come_back_as_they_were_written(tmp_path: Path) -> None:
    store = Database(tmp_path / "deep" / "times.sqlite")
    no_backward = replace(timed(8), backward=None, call=replace(call(8), backward=None))
    store.write(HERE, [timed(64), no_backward])
    assert store.read(HERE) == {t.call.text: t for t in (timed(64), no_backward)}
    store.write(HERE, [timed(64, 5.0)])
    assert store.read(HERE)[call(64).text] == timed(64, 5.0), "the later time counts"
    assert len(store.read(HERE)) == 2


def test_settings_are_never_mixed(tmp_path: Path) -> None:
    store = Database(tmp_path / "times.sqlite")
    store.write(HERE, [timed(64)])
    others = (
        ELSEWHERE, replace(HERE, software="torch 2.14"), replace(HERE, threads=2),
        replace(HERE, ranks=4), replace(HERE, cores=8),
    )  # fmt: skip
    assert not any(store.read(other) for other in others)
    store.write(ELSEWHERE, [timed(64, 9.0)])
    assert store.read(HERE)[call(64).text] == timed(64)
    assert store.settings() == (HERE, ELSEWHERE)


def test_a_failing_write_leaves_nothing_of_itself(tmp_path: Path) -> None:
    store = Database(tmp_path / "times.sqlite")
    store.write(HERE, [timed(64)])

    def breaks() -> object:
        yield timed(128)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.write(ELSEWHERE, breaks())  # type: ignore[arg-type]
    assert store.settings() == (HERE,) and len(store.read(HERE)) == 1


@pytest.mark.thorough
def test_a_killed_writer_leaves_the_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "times.sqlite"
    Database(path).write(HERE, [timed(64)])
    script = f"""
        import sys, time
        from tests.cost_models.test_measured import HERE, timed
        from cost_models.measured import Database
        def slow():
            for size in range(1, 10**6):
                yield timed(float(size))
                if size == 20000:  # more than fits into SQLite's memory: the file is being changed
                    print("half", flush=True)
                    time.sleep(60)
        Database({str(path)!r}).write(HERE, slow())
    """
    writer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None and writer.stdout.readline() == "half\n"
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    assert set(Database(path).read(HERE)) == {call(64).text}
    connection = sqlite3.connect(path)
    assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
    connection.close()


def _write_many(path: str, first: int) -> None:
    for size in range(first, first + 20):
        Database(path).write(HERE, [timed(float(size))])


def test_several_processes_write_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "times.sqlite")
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_many, args=(path, 100 * n)) for n in range(1, 5)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert len(Database(path).read(HERE)) == 80


@pytest.mark.parametrize("content", [b"not a database, but long enough to look like one" * 9, None])
def test_other_files_are_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "times.sqlite"
    if content is None:
        connection = sqlite3.connect(path)
        connection.execute("create table mine (x)")
        connection.commit()
        connection.close()
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    with pytest.raises(CostModelError, match=r"times\.sqlite.*autopar profile") as refused:
        Database(path).settings()
    assert "elete" not in str(refused.value), "it may be anything, and somebody's"
    assert "is not a profile database; it was not changed" in str(refused.value)
    assert path.read_bytes() == before


def test_a_database_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "times.sqlite"
    Database(path).write(HERE, [])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma user_version = 99")
    with pytest.raises(CostModelError, match=r"of version 99, not 2; .* or delete this one"):
        Database(path).settings()


def test_what_sqlite_says_of_a_damaged_file_may_be_no_text(tmp_path: Path) -> None:
    path = tmp_path / "times.sqlite"
    Database(path).write(HERE, [timed(8)])
    path.write_bytes(path.read_bytes().replace(b"TABLE timed", b"TABL\xac timed"))
    with pytest.raises(CostModelError, match=r"times.sqlite cannot be used: .* can't decode byte"):
        Database(path).settings()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("forward_s = -1", "forward seconds of 'mm 64' is -1.0, not more than zero seconds"),
        ("forward_s = 0", "forward seconds of 'mm 64' is 0.0, not more than zero seconds"),
        ("forward_s = 'abc'", "forward seconds of 'mm 64' is 'abc'"),
        ("forward_s = 9e999", "forward seconds of 'mm 64' is inf"),
        ("backward_s = -5", "backward seconds of 'mm 64' is -5.0"),
        (
            "backward_spread = NULL",
            "backward spread of 'mm 64' is None, not zero or more",
        ),
        ("forward_spread = -1", "forward spread of 'mm 64' is -1.0"),
        ("backward_nbytes = NULL", "backward bytes of 'mm 64' is None"),
        ("forward_s = 1e300", "forward seconds of 'mm 64' is 1e\\+300, not more than zero seconds"),
        ("dtype = 'bf17'", "'mm 64' has 'bf17', which is not a dtype"),
        ("\"rows\" = 'many'", "rows of 'mm 64' is 'many', not 1 or more"),
        ("flops = x'00'", r"forward flops of 'mm 64' is b'\\x00'"),
        ("op = x'00'", r"'mm 64' has b'\\x00' where a text belongs"),
    ],
)
def test_damaged_values_are_not_believed(tmp_path: Path, change: str, says: str) -> None:
    path = tmp_path / "times.sqlite"
    Database(path).write(HERE, [timed(8), timed(64)])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"update timed set {change} where text = 'mm 64'")
        connection.commit()
    with pytest.raises(CostModelError, match=f"times.sqlite is damaged: {says}") as refused:
        Database(path).read(HERE)
    assert "--database, or delete this one, and measure again" in str(refused.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("memory_bytes = 'much'", "The memory of 'some cpu' is 'much'"),
        ("memory_bytes = -1", "The memory of 'some cpu' is -1"),
        ("memory_bytes = 9e999", "The memory of 'some cpu' is inf"),
        ("threads = 'x'", "The threads of 'some cpu' are 'x'"),
        ("ranks = -1", "The ranks of 'some cpu' are -1"),
    ],
)
def test_a_damaged_setting_is_refused(tmp_path: Path, change: str, says: str) -> None:
    path = tmp_path / "times.sqlite"
    Database(path).write(HERE, [])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"update setting set {change}")
        connection.commit()
    with pytest.raises(CostModelError, match=f"damaged: {says}"):
        Database(path).settings()


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(CostModelError, match=r"no profile database .*autopar profile"):
        Database(tmp_path / "none.sqlite").settings()
    assert not (tmp_path / "none.sqlite").exists()


def test_rows_alternate_and_warm_up() -> None:
    order: list[str] = []
    actions = {name: lambda name=name: order.append(name) for name in "ab"}
    found = rows_of(actions, Effort(rows=3, row_s=0.0), "cpu")
    assert "".join(name for name, _ in itertools.groupby(order)) == "ab" * 4
    assert {name: len(rows) for name, rows in found.items()} == {"a": 3, "b": 3}


def test_the_median_survives_a_busy_moment() -> None:
    steady = median_of([1.0, 1.1, 0.9, 1.0, 50.0], calls=2)
    assert steady.seconds == 0.5 and steady.spread == pytest.approx(0.05)


def test_a_slow_action_has_fewer_rows() -> None:
    def busy() -> None:
        end = time.process_time() + 0.02
        while time.process_time() < end:
            pass

    found = rows_of({0: busy}, Effort(rows=50, row_s=0.0, most_s=0.05), "cpu")
    assert 3 <= len(found[0]) <= 4


def test_a_rank_of_one_thread_is_timed_by_what_it_spends() -> None:
    """Others may have kept it waiting; with more threads waiting counts."""
    before = torch.get_num_threads()
    try:
        for threads, least_s in ((1, 0.0), (2, 0.02)):
            torch.set_num_threads(threads)
            found = rows_of({0: lambda: time.sleep(0.02)}, Effort(3, 0.0, 1.0), "cpu")
            assert least_s <= min(found[0]) <= max(found[0]) + 1e-9
            assert threads > 1 or max(found[0]) < 0.01
    finally:
        torch.set_num_threads(before)


def test_this_machine_has_a_name() -> None:
    setting = here("cpu", 3, 4)
    assert setting.device and setting.software.startswith("torch ")
    assert (setting.kind, setting.threads, setting.ranks) == ("cpu", 3, 4) and setting.cores > 0


def test_processors_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """A hypervisor calls several generations by one name."""
    first = "model name\t: AMD EPYC\ncpu family\t: {}\nmodel\t\t: 2\nflags\t\t: fpu avx2{}\n"
    text = first + "\nprocessor\t: 1\n"
    found = []
    for number, filled in enumerate([text.format(26, " avx512f"), text.format(23, "")]):
        path = tmp_path / f"cpuinfo{number}"
        path.write_text(filled)
        found.append(processor(path))
    assert found == [
        "AMD EPYC (family 26, model 2, avx512f)",
        "AMD EPYC (family 23, model 2, avx2)",
    ]
    assert processor(tmp_path / "none")
