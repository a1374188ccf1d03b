"""Times calls: in this process, or in several processes that run the same calls at the same time."""

from __future__ import annotations

import datetime
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from autopar.errors import InputError
from autopar.profile.bench import Bench, Pool, bench
from autopar.rules import LocalCall
from cost_models.calibrate import processes
from cost_models.measured import Call, Setting, Timed
from cost_models.measured.cold import copies_of
from cost_models.measured.timer import Effort, median_of, rows_of

AT_ONCE_NBYTES = {"cpu": 2**30, "cuda": 2**34}
"""Total bytes of the calls that are timed together in alternating rows."""
Key = tuple[str, bool]
"""A call's text, and whether it is its backward."""


@dataclass(frozen=True)
class Refused:
    """A call that could not be run on random operands, and what it raised."""

    call: Call
    reason: str


Pairs = Sequence[tuple[LocalCall, Call]]


@dataclass(frozen=True)
class Job:
    """The work of each process; `imports` are modules that register operators."""

    pairs: Pairs
    kind: str
    threads: int
    effort: Effort
    imports: tuple[str, ...] = ()

    def __call__(self) -> tuple[list[Timed], list[Refused]]:
        for place in self.imports:
            _imported(place)
        before = torch.get_num_threads()
        if self.kind == "cpu":
            torch.set_num_threads(self.threads)
        try:
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                return _timed(self.pairs, self.kind, self.effort)
        finally:
            torch.set_num_threads(before)


def measure(
    pairs: Pairs,
    setting: Setting,
    effort: Effort | None = None,
    imports: tuple[str, ...] = (),
    limit_s: float = 3600.0,
) -> tuple[list[Timed], list[Refused]]:
    """Time every call in a setting; with several ranks, in that many processes at once."""
    own = any(not local.op.startswith(("aten.", "autopar.")) for local, _ in pairs)
    places = imports if own else ()
    job = Job(pairs, setting.kind, setting.threads, effort or Effort(), places)
    if setting.ranks > 1:
        return processes.run(setting.ranks, job, limit_s)
    if torch.distributed.is_initialized():
        raise InputError("Measure operators outside of a process group: each rank would wait.")
    return job()


def _imported(place: str) -> None:
    """Import a module or a file that registers operators."""
    if not place.endswith(".py"):
        importlib.import_module(place)
        return
    spec = importlib.util.spec_from_file_location("autopar_operators", place)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _timed(pairs: Pairs, kind: str, effort: Effort) -> tuple[list[Timed], list[Refused]]:
    """Time the calls in this process, in step with the ranks of the default group if there is one."""
    pool = Pool(kind, (local for local, _ in pairs))
    call_of = {call.text: call for _, call in pairs}
    rows: dict[Key, tuple[list[float], int]] = {}
    refused: list[Refused] = []
    for group in _groups(pairs, kind):
        benches: dict[str, Bench] = {}
        for local, call in group:
            try:
                benches[call.text] = bench(local, pool, call.forward.nbytes)
            except Exception as error:  # whatever an operator may raise on random numbers
                refused.append(Refused(call, f"{type(error).__name__}: {error}".splitlines()[0]))
        actions = dict(_actions(benches))
        for key, found in rows_of(actions, effort, kind).items():
            rows[key] = found, benches[key[0]].copies
    today = datetime.date.today().isoformat()
    texts = [text for text, back in rows if not back]
    return [_result(call_of[text], rows, today) for text in texts], refused


def _result(call: Call, rows: Mapping[Key, tuple[list[float], int]], today: str) -> Timed:
    forward, copies = rows[call.text, False]
    back = rows.get((call.text, True))
    backward = None if back is None else median_of(*back)
    return Timed(call, median_of(forward, copies), backward, len(forward), today)


def _actions(benches: Mapping[str, Bench]) -> Iterator[tuple[Key, Callable[[], object]]]:
    for text, made in benches.items():
        yield (text, False), made.forward
        if made.backward is not None:
            yield (text, True), made.backward


def _groups(pairs: Pairs, kind: str) -> Iterator[Pairs]:
    """Group calls that fit into memory together, assuming that saved activations are of their size."""
    most = AT_ONCE_NBYTES[kind]
    group: list[tuple[LocalCall, Call]] = []
    held = 0.0
    for local, call in pairs:
        nbytes = 3 * call.forward.nbytes * copies_of(call.forward.nbytes, kind)
        if group and held + nbytes > most:
            yield group
            group, held = [], 0.0
        group.append((local, call))
        held += nbytes
    if group:
        yield group
