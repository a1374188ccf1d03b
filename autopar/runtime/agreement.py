"""Checks that all ranks have the same model, plan and batch; raises a clear error on all of them if not.

Values are exchanged through the store of the default process group, not through collectives, so that a
disagreement is found before a collective can hang on it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import takewhile

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from autopar import errors
from autopar.errors import AutoparError, RankFailedError, RankMismatchError
from autopar.runtime import failure_watchdog as faults
from autopar.runtime import launch
from autopar.runtime.launch import Launch
from autopar.runtime.waiting import written

SAME_CALLS = (
    "Every rank must build the same model (same sizes, same code) and call autopar with the same "
    "arguments."
)
SAME_MODEL = (
    f"{SAME_CALLS} If only some ranks have run the model before, what functions under "
    "functools.lru_cache returned there is a constant of their graphs: run it on all ranks or on none, "
    "or call cache_clear() of these functions."
)
SAME_BATCH = "Pass every rank the same whole batch: use the same seed for shuffling on all of them."
TOGETHER = "the next call"
LONG = 200
"""Largest number of characters of a value that is shown whole where ranks disagree."""


def begin(call: str, *, meet: bool = False) -> None:
    """Begin a call that all ranks make; raise if some have ended or make another call.

    Ranks compare the names of calls whenever the kind changes (a step, then an evaluation), and always
    with `meet`: for calls that would hang on a mismatch, or mix up data of two calls.
    """
    if launch.alone():
        return
    here = launch.current()
    changed = here.calls.note(call)
    faults.refuse_left(call)
    if changed or meet:
        assert_same_on_all_ranks(TOGETHER, call)


def begin_together(call: str, mesh: DeviceMesh) -> None:
    """Begin a call that all ranks of a mesh make; compared if these are all ranks, not within stages."""
    if mesh.size() == dist.get_world_size():
        begin(call, meet=True)


def assert_same_on_all_ranks(what: str, value: str, remedy: str = SAME_CALLS) -> None:
    """Raise `RankMismatchError` on every rank unless all ranks compare `what` and have this value."""
    if launch.alone():
        return
    here = launch.current()
    key, word = f"same/{here.meeting()}", json.dumps([what, value])
    label = f"{what}, which is {value} on this rank" if what == TOGETHER else what
    if here.rank == 0:
        words = _collected(here, key, word, label)
        error = words if isinstance(words, AutoparError) else _compared(words, what, remedy)
        if not here.peers and error is None:
            launch.write_table()  # before any rank goes on: it may end at any time
            here.meet_peers(here.store)
        kind = "" if error is None else type(error).__name__
        here.store.set(key, json.dumps([kind, str(error)]))
        here.read.append(key)
        if error is not None:
            raise error
        return
    here.store.set(f"{key}/{here.rank}", word)
    kind, message = json.loads(written(here, key, 0, label, arrived=f"{key}/0"))
    here.meet_peers(here.store)
    if kind:
        raise _known(kind, message)


def _collected(
    here: Launch, key: str, mine: str, what: str
) -> list[str] | RankMismatchError | RankFailedError:
    """Return the values of all ranks, or the error if one is missing; delete their keys."""
    here.store.set(f"{key}/0", "")
    words = [mine]
    try:
        for rank in range(1, here.size):
            words.append(written(here, f"{key}/{rank}", rank, what))
    except (RankMismatchError, RankFailedError) as error:
        return error
    for old in [*here.read, *(f"{key}/{rank}" for rank in range(1, here.size))]:
        here.store.delete_key(old)
    here.read[:] = [f"{key}/0"]
    return words


def _compared(words: Sequence[str], what: str, remedy: str) -> RankMismatchError | None:
    compared, values = zip(*map(json.loads, words), strict=True)
    if len(set(compared)) > 1:
        return RankMismatchError(
            f"Ranks are out of step: rank 0 compares {compared[0]}, but {_odd(compared)}. "
            f"{SAME_CALLS}"
        )
    if len(set(values)) == 1:
        return None
    if what == TOGETHER:
        return RankMismatchError(
            f"Ranks are out of step: rank 0 calls {values[0]}, but {_odd(values)}. All ranks "
            "take part in each call of a parallel model: make the same calls, in the same "
            "order, on every rank."
        )
    shown = unlike_parts(values)
    return RankMismatchError(
        f"Ranks disagree about {what}: rank 0 has {shown[0]!r}, but {_odd(shown)}. {remedy}"
    )


def unlike_parts(values: Sequence[str]) -> list[str]:
    """Return long values without the words with which all of them begin or end."""
    words = [value.split(" ") for value in values]
    if max(map(len, values)) <= LONG:
        return list(values)
    alike = (len(set(each)) == 1 for each in zip(*words, strict=False))
    before = len(list(takewhile(bool, alike)))
    rests = [each[before:] for each in words]
    alike = (len(set(each)) == 1 for each in zip(*map(reversed, rests), strict=False))
    behind = len(list(takewhile(bool, alike)))
    dots = ["..."]
    return [
        " ".join(dots * bool(before) + rest[: len(rest) - behind] + dots * bool(behind))
        for rest in rests
    ]


def _odd(values: Sequence[str]) -> str:
    """Name the ranks whose value differs from rank 0's, and the first such value."""
    odd = [rank for rank, value in enumerate(values) if value != values[0]]
    has = "has" if len(odd) == 1 else "have"
    return f"rank {', '.join(map(str, odd))} {has} {values[odd[0]]!r}"


def from_first_rank(make: Callable[[], tuple[str, ...]], what: str = "the plan") -> tuple[str, ...]:
    """Return rank 0's result of `make`, however long it takes; if it raises there, every rank raises."""
    if launch.alone():
        return make()
    here = launch.current()
    key = f"first/{here.meeting()}"
    if here.rank == 0:
        here.store.set(f"{key}/begun", "")
        here.read += [key, f"{key}/begun"]
        try:
            made = make()
        except Exception as error:
            here.store.set(key, json.dumps([type(error).__name__, str(error)]))
            raise
        here.store.set(key, json.dumps(["", *made]))
        return made
    kind, *values = json.loads(written(here, key, 0, what, arrived=f"{key}/begun"))
    if not kind:
        return tuple(values)
    raise _known(kind, values[0])


def _known(kind: str, message: str) -> AutoparError:
    """Return the exception that this rank raises for rank 0's error."""
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, AutoparError):
        return found(message)
    return RankFailedError(f"Rank 0 failed while planning: {kind}: {message}")
