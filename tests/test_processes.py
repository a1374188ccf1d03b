"""Several processes answer what one would, and none is left behind or fails unheard."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from autopar.capture import ExampleInputs, Traced
from autopar.compile.automatic import chosen, source_of
from autopar.compile.compiler import Compiler
from autopar.errors import AutoparError, InputError, OverLimitError
from autopar.ir.mesh import Mesh
from autopar.ir.placement import I, Letter, N, P, R
from autopar.pipeline.build.choose import choose
from autopar.request.pipeline import Pipeline
from autopar.sharding.sharding_problem import Settings
from autopar.utils import processes
from autopar.utils.processes import Aside, side_by_side
from tests.daily import daily
from tests.pipeline.build.cases import compiler_of
from tests.pipeline.build.hosts import slow_hosts

HERE = os.getpid()


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(processes.SWITCH, "3")


def slowly(item: int) -> tuple[int, int]:
    time.sleep(0.05)
    return item, os.getpid()


@pytest.mark.usefixtures("three")
def test_several_processes_take_items_in_turn() -> None:
    found = side_by_side(slowly, range(12))
    assert [item for item, _ in found] == list(range(12))
    assert len({process for _, process in found}) == 3
    assert Aside.helping == 0


def test_one_process_answers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(processes.SWITCH, "1")
    assert {process for _, process in side_by_side(slowly, range(3))} == {HERE}
    assert Aside(os.getpid).result() == HERE


@pytest.mark.usefixtures("three")
def test_there_is_one_process_per_core_at_most() -> None:
    """Helpers have none, and while one works aside two share the items."""
    assert {each for each in side_by_side(lambda _: side_by_side(slowly, range(2))[1][1], range(2))}
    aside = Aside(lambda: len({process for _, process in side_by_side(slowly, range(4))}))
    assert len({process for _, process in side_by_side(slowly, range(12))}) == 2
    assert aside.result() == 1


@pytest.mark.usefixtures("three")
def test_the_first_error_is_raised_whole() -> None:
    def fails(item: int) -> int:
        time.sleep(0.02)
        if item in (4, 7):
            raise OverLimitError(f"item {item}", float(item))
        return item

    for _ in range(5):
        with pytest.raises(OverLimitError, match="item 4") as caught:
            side_by_side(fails, range(9))
        assert caught.value.least_nbytes == 4.0
        assert Aside.helping == 0


@pytest.mark.usefixtures("three")
def test_after_an_error_nobody_starts_what_is_left(tmp_path: Path) -> None:
    def fails(item: int) -> None:
        (tmp_path / str(item)).touch()
        time.sleep(0.05)
        raise ValueError(item)

    with pytest.raises(ValueError, match="0"):
        side_by_side(fails, range(100))
    assert len(list(tmp_path.iterdir())) <= 6


@pytest.mark.usefixtures("three")
def test_a_process_that_dies_is_told_of() -> None:
    def dies(item: int) -> int:
        if os.getpid() != HERE:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.2)
        return item

    with pytest.raises(AutoparError, match=r"exit code -9 .* out of memory.* AUTOPAR_PROCESSES=1"):
        side_by_side(dies, range(4))
    assert Aside.helping == 0


@pytest.mark.usefixtures("three")
def test_what_is_aside_runs_meanwhile_and_can_be_stopped(tmp_path: Path) -> None:
    aside = Aside(lambda: (tmp_path / "started").touch() or os.getpid())
    while not (tmp_path / "started").exists():
        time.sleep(0.01)
    assert aside.result() != HERE
    with pytest.raises(ZeroDivisionError):
        Aside(lambda: 1 // 0).result()
    begun = time.monotonic()
    Aside(lambda: time.sleep(60)).stop()
    assert time.monotonic() - begun < 10
    assert Aside.helping == 0


@pytest.mark.parametrize("said", ["0", "-1", "many", "1.5", ""])
def test_a_number_that_is_none_is_refused(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(processes.SWITCH, said)
    with pytest.raises(InputError, match=r"AUTOPAR_PROCESSES=.* is not a number of processes"):
        side_by_side(slowly, range(2))


def test_nothing_is_forked_once_cuda_is_in_use(
    three: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert {process for _, process in side_by_side(slowly, range(3))} == {HERE}


ORPHAN = """
import os, sys, time
from pathlib import Path
from autopar.utils.processes import side_by_side
def work(item):
    (Path(sys.argv[1]) / f"{item} {os.getpid()}").touch()
    time.sleep(0.2)
side_by_side(work, range(1000))
"""


@pytest.mark.thorough
def test_helpers_end_with_whoever_asked(tmp_path: Path) -> None:
    environment = {**os.environ, processes.SWITCH: "2"}
    asking = subprocess.Popen([sys.executable, "-c", ORPHAN, str(tmp_path)], env=environment)
    while len({path.name.split()[1] for path in tmp_path.iterdir()}) < 2:
        assert asking.poll() is None
        time.sleep(0.05)
    asking.kill()
    asking.wait()
    time.sleep(1.0)
    done = len(list(tmp_path.iterdir()))
    time.sleep(0.5)
    assert len(list(tmp_path.iterdir())) == done


@pytest.mark.parametrize("letter", [R, I, P, N])
def test_letters_come_back_as_themselves(letter: Letter) -> None:
    """They are compared by identity here and there."""
    assert pickle.loads(pickle.dumps(letter)) is letter


def test_graphs_come_back_as_they_are() -> None:
    """What is sent between processes is the same graph: its letters, its digest."""
    source = source_of(*compiler_of("llama", Mesh.of(2), slow_hosts(3e5, per_host=1), layers=2))
    again = pickle.loads(pickle.dumps(source.whole))
    assert again == source.whole and again.digest == source.whole.digest


@pytest.mark.slow
def test_a_plan_is_the_same_by_any_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    hardware, mesh = slow_hosts(3e5, per_host=2), Mesh.of(2, 2)
    texts = []
    for count in ("1", "3"):
        monkeypatch.setenv(processes.SWITCH, count)
        source = source_of(*compiler_of("gpt2", mesh, hardware, layers=2))
        found = choose(source, mesh, hardware, Settings(), Pipeline())
        assert found.staged is not None and len(found.staged.plan.workers) > 1
        texts.append((found.staged.plan.to_json(), found.staged.sources))
    assert texts[0] == texts[1]


@pytest.mark.thorough
@pytest.mark.parametrize("count", daily(["1", "3"], ["3"]))
def test_what_a_model_warns_of_is_heard_once(
    count: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One capture of two says it, whichever process makes the other."""
    monkeypatch.setenv(processes.SWITCH, count)
    heard = logging.FileHandler(tmp_path / "heard")
    logging.getLogger("model").addHandler(heard)
    captured = Compiler.traced

    def loud(self: Compiler, inputs: ExampleInputs) -> Traced:
        logging.getLogger("model").warning("once is enough")
        return captured(self, inputs)

    monkeypatch.setattr(Compiler, "traced", loud)
    compiler, batch = compiler_of("llama", Mesh.of(2), slow_hosts(3e5, per_host=1), layers=2)
    chosen(compiler, batch, Pipeline(microbatches=2))
    heard.close()
    logging.getLogger("model").removeHandler(heard)
    assert (tmp_path / "heard").read_text().count("once is enough") == 1
    assert not logging.root.manager.disable
