"""A training script in which something goes wrong on one rank: ``trial.py PRESET HOW RANK``.

PRESET is a preset's name, ``stages``, or ``nothing`` for a plan that communicates nothing.
"""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import autopar
from autopar.compile.compiler import Compiler
from tests import models

preset, how, failing = sys.argv[1], sys.argv[2], int(sys.argv[3])
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
# A shell ignores it on behalf of what it starts in the background, and Python leaves it so.
signal.signal(signal.SIGINT, signal.default_int_handler)
here = failing == RANK
model, batch, loss = models.mlp()


class Data(torch.utils.data.Dataset[int]):
    """Whose third item cannot be read on one rank."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, at: int) -> int:
        if here and at == 3:
            raise OSError("no such sample")
        return at


def parallelized() -> Any:
    options: dict[str, Any] = {"loss": loss, "hardware": "cpu"}
    if preset == "stages":
        options |= {"pipeline": autopar.Pipeline(SIZE, microbatches=4)}
    elif preset != "nothing":
        options |= {"preset": preset}
    return autopar.parallelize(model, SIZE, batch, **options)


def step(parallel: Any) -> None:
    if preset == "stages":
        parallel.train_step(**batch)
    else:
        parallel(**batch).backward()
    parallel.zero_grad()
    time.sleep(0.01)


def steps(parallel: Any, count: int) -> None:
    for _ in range(count):
        step(parallel)


def train_behind(action: Callable[[], Any]) -> None:
    """The failing rank does this behind three steps; the others go on."""
    parallel = parallelized()
    steps(parallel, 3)
    if here:
        action()
    steps(parallel, 100_000)


def train_behind_one(action: Callable[[], Any]) -> None:
    """The failing rank does this behind the first step."""
    parallel = parallelized()
    step(parallel)
    if here:
        action()
    steps(parallel, 100_000)


def fail(*_: Any) -> None:
    raise ValueError("broken on purpose")


def in_thread() -> None:
    thread = threading.Thread(target=lambda: os.kill(os.getpid(), signal.SIGKILL))
    thread.start()
    thread.join()


def load(workers: str) -> None:
    loader = torch.utils.data.DataLoader(Data(), num_workers=2, multiprocessing_context=workers)
    list(loader)


def with_other_hook() -> None:
    sys.excepthook = lambda kind, error, trace: print("mine", error, file=sys.stderr)
    fail()


def forked_then_killed() -> None:
    if os.fork() == 0:
        time.sleep(30)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def without_lock(seconds: int) -> None:
    ctypes.PyDLL(None).sleep(seconds)  # Python's lock is held meanwhile


def alone(call: Callable[[Any], Any]) -> None:
    """One rank calls what all have to; then all train."""
    parallel = parallelized()
    steps(parallel, 3)
    if here:
        call(parallel)
    steps(parallel, 100_000)


def alone_then_barrier(call: Callable[[Any], Any]) -> None:
    parallel = parallelized()
    steps(parallel, 3)
    if here:
        call(parallel)
    dist.barrier()


def evaluate(parallel: Any) -> None:
    parallel.eval()
    with torch.no_grad():
        parallel(**batch)
    parallel.train()


def save(parallel: Any) -> None:
    parallel.save(Path(tempfile.gettempdir()) / f"autopar_trial_{os.getpid()}")


def fewer_steps() -> None:
    parallel = parallelized()
    steps(parallel, 3 if here else 6)


def fewer_then_evaluate() -> None:
    parallel = parallelized()
    for _ in range(2):
        steps(parallel, 3 if here else 6)
        evaluate(parallel)


def on_one_rank_only(join: bool) -> None:
    if join:
        dist.init_process_group("gloo")
    if here:
        parallelized()


def slow_plan(seconds: float, fails: bool = False) -> None:
    whole = Compiler._decide

    def slowly(self: Any, *arguments: Any) -> Any:
        time.sleep(seconds)
        if fails:
            fail()
        return whole(self, *arguments)

    Compiler._decide = slowly  # type: ignore[method-assign]
    steps(parallelized(), 3)


def other_order() -> None:
    """Two models, trained in another order on one rank, with an evaluation between."""
    first, second = parallelized(), parallelized()
    for _ in range(3):
        step(first)
        step(second)
    if here:
        evaluate(first)
        step(second)
    else:
        step(second)
        evaluate(first)


FAULTS: dict[str, Callable[[], Any]] = {
    "raise": lambda: train_behind(fail),
    "interrupt": lambda: train_behind(lambda: os.kill(os.getpid(), signal.SIGINT)),
    "sigterm": lambda: train_behind(lambda: os.kill(os.getpid(), signal.SIGTERM)),
    "kill": lambda: train_behind(lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "kill_early": lambda: train_behind_one(lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "segfault": lambda: train_behind(lambda: os.kill(os.getpid(), signal.SIGSEGV)),
    "abort": lambda: train_behind(os.abort),
    "kill_in_thread": lambda: train_behind(in_thread),
    "kill_with_children": lambda: train_behind(forked_then_killed),
    "os_exit_0": lambda: train_behind(lambda: os._exit(0)),
    "os_exit_3": lambda: train_behind(lambda: os._exit(3)),
    "exit_0": lambda: train_behind(lambda: sys.exit(0)),
    "exit_1": lambda: train_behind(lambda: sys.exit(1)),
    "exit_text": lambda: train_behind(lambda: sys.exit("enough")),
    "destroy_and_exit": lambda: train_behind(lambda: (dist.destroy_process_group(), sys.exit(0))),
    "stop": lambda: train_behind(lambda: os.kill(os.getpid(), signal.SIGSTOP)),
    "loader_fork": lambda: train_behind(lambda: load("fork")),
    "loader_spawn": lambda: train_behind(lambda: load("spawn")),
    "other_hook": lambda: train_behind(with_other_hook),
    "memory": lambda: train_behind(lambda: torch.empty(2**60)),
    "evaluate_alone": lambda: alone(evaluate),
    "save_alone": lambda: alone(save),
    "full_state_dict_alone": lambda: alone(lambda parallel: parallel.full_state_dict()),
    "load_alone": lambda: alone(lambda parallel: parallel.load_state_dict(model.state_dict())),
    "save_weights_alone": lambda: alone(lambda p: p.save_weights("/tmp/autopar_trial.safetensors")),
    "save_alone_then_barrier": lambda: alone_then_barrier(save),
    "state_alone_then_barrier": lambda: alone_then_barrier(lambda p: p.full_state_dict()),
    "step_alone": lambda: alone_then_barrier(step),
    "fewer_steps": fewer_steps,
    "fewer_then_evaluate": fewer_then_evaluate,
    "one_rank_only": lambda: on_one_rank_only(True),
    "plan_fails": lambda: slow_plan(1.0, fails=True),
    "other_order": other_order,
}


def train(end: Callable[[], Any]) -> None:
    steps(parallelized(), 5)
    end()


def again() -> None:
    """A group that is destroyed and made again, in one process."""
    for _ in range(3):
        dist.init_process_group("gloo")
        steps(parallelized(), 2)
        dist.destroy_process_group()


def again_kept() -> None:
    """The same, the old models being held; what they are asked for names what to do."""
    kept = []
    for _ in range(3):
        dist.init_process_group("gloo")
        kept.append(parallelized())
        steps(kept[-1], 2)
        dist.destroy_process_group()
    dist.init_process_group("gloo")
    steps(parallelized(), 1)
    for call in (step, lambda p: p.full_state_dict(), save):
        try:
            call(kept[0])
        except autopar.errors.MeshError as error:
            assert "was destroyed" in str(error), error
        else:
            raise AssertionError("the old model still answers")
    steps(parallelized(), 1)


def target(place: str) -> None:
    os.environ["AUTOPAR_TRIAL"] = place
    steps(parallelized(), 3)


def in_child(method: str) -> None:
    child = multiprocessing.get_context(method).Process(target=target, args=("child",))
    child.start()
    child.join()
    sys.exit(child.exitcode)


def trained_in_thread() -> None:
    thread = threading.Thread(target=lambda: steps(parallelized(), 5))
    thread.start()
    thread.join()


ENDS: dict[str, Callable[[], Any]] = {
    "plain": lambda: train(lambda: None),
    "destroy": lambda: train(dist.destroy_process_group),
    "later": lambda: train(lambda: time.sleep(8.0 * here)),
    "destroy_later": lambda: train(lambda: (dist.destroy_process_group(), time.sleep(8.0 * here))),
    "later_holding_the_lock": lambda: train(lambda: without_lock(8 * here)),
    "all_exit_0": lambda: train(lambda: sys.exit(0)),
    "atexit": lambda: (atexit.register(time.sleep, 5.0 * here), train(lambda: None)),
    "slow_between": lambda: train_slowly(lambda: time.sleep(12.0)),
    "holding_the_lock": lambda: train_slowly(lambda: without_lock(12)),
    "slow_plan": lambda: slow_plan(12.0),
    "again": again,
    "again_kept": again_kept,
    "in_thread": trained_in_thread,
    "in_fork": lambda: in_child("fork"),
    "loader": lambda: train(lambda: list(torch.utils.data.DataLoader([1, 2], num_workers=2))),
    "forked_child_ends": lambda: train_slowly(fork_and_exit),
    "stopped_shortly": lambda: train_slowly(stop_shortly),
}


def train_slowly(between: Callable[[], Any]) -> None:
    parallel = parallelized()
    steps(parallel, 3)
    if here:
        between()
    steps(parallel, 3)


def fork_and_exit() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)  # sys.exit() hangs in the destructors of torch's process groups, as under DDP
    os.waitpid(child, 0)
    time.sleep(2.0)


def stop_shortly() -> None:
    child = os.fork()
    if child == 0:
        os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(2.0)
        os.kill(os.getppid(), signal.SIGCONT)
        os._exit(0)
    os.waitpid(child, 0)


if __name__ == "__main__":
    (FAULTS | ENDS)[how]()
