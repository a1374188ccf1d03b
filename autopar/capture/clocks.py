"""Detects reads of clocks, and refuses reads of the environment and of files: a graph freezes them."""

from __future__ import annotations

import builtins
import contextlib
import datetime
import io
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch

from autopar.capture.lines import is_users
from autopar.capture.python_state import PythonState, is_library
from autopar.capture.where import location, origin_at
from autopar.errors import CaptureError

FUNCTIONS = ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns",
             "process_time", "process_time_ns", "localtime", "gmtime", "ctime", "strftime")  # fmt: skip
CLOCKS = frozenset(
    [*FUNCTIONS, "now", "utcnow", "today", "uuid1", "uuid4", "urandom", "default_rng",
     "RandomState", "SystemRandom", "token_hex", "token_bytes", "randbits", "randbelow"]
)  # fmt: skip
"""Names of functions that return another value at each call and have no state to compare."""
SECONDS = 400_003_987.654
"""Difference between the two times: another year, month, weekday, hour and minute."""


@contextlib.contextmanager
def later(held: PythonState) -> Iterator[None]:
    """Within the context, `time` and the clocks that the user's functions name are `SECONDS` ahead."""
    with contextlib.ExitStack() as undone:
        shifted: dict[int, Any] = {id(getattr(time, name)): _shifted(name) for name in FUNCTIONS}
        for name in FUNCTIONS:
            _set(undone, vars(time), name, _shifted(name))
        shifted |= {
            id(datetime): _Datetime("datetime"), id(datetime.datetime): _Moment, id(datetime.date): _Day,
        }  # fmt: skip
        for scope in held.scopes.values():
            for name, value in list(scope.items()):
                if id(value) in shifted:
                    _set(undone, scope, name, shifted[id(value)])
        yield


def _set(undone: contextlib.ExitStack, scope: dict[str, Any], name: str, value: Any) -> None:
    before = scope[name]
    scope[name] = value
    undone.callback(scope.__setitem__, name, before)


_REAL = {name: getattr(time, name) for name in FUNCTIONS}


def _shifted(name: str) -> Callable[..., Any]:
    real, now = _REAL[name], _REAL["time"]
    if name in ("localtime", "gmtime", "ctime"):
        return lambda seconds=None: real(now() + SECONDS if seconds is None else seconds)
    if name == "strftime":
        return lambda form, *given: real(form, *(given or (_REAL["localtime"](now() + SECONDS),)))
    scale = 10**9 if name.endswith("_ns") else 1
    return lambda: real() + type(real())(SECONDS * scale)


class _Moment(datetime.datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return datetime.datetime.fromtimestamp(_REAL["time"]() + SECONDS, tz)

    utcnow = today = now


class _Day(datetime.date):
    @classmethod
    def today(cls) -> Any:
        return datetime.date.fromtimestamp(_REAL["time"]() + SECONDS)


class _Datetime(types.ModuleType):
    datetime, date = _Moment, _Day

    def __getattr__(self, name: str) -> Any:
        return getattr(datetime, name)


@contextlib.contextmanager
def reads_refused() -> Iterator[None]:
    """Within the context, refuse reads of the environment and of files by the user's own code.

    Seeding torch's random generators is refused as well. Each raises `CaptureError`.
    """
    thread = threading.get_ident()
    environ: Any = type(os.environ)
    get, opened = environ.__getitem__, builtins.open

    def read(self: Any, key: str) -> Any:
        _refuse(sys._getframe(1), f"the environment variable {key!r}", thread)
        return get(self, key)

    def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not set(mode) & set("wax"):
            _refuse(sys._getframe(1), f"the file {file!r}", thread)
        return opened(file, mode, *args, **kwargs)

    environ.__getitem__ = read
    builtins.open = io.open = open_
    with contextlib.ExitStack() as undone:
        for scope in (vars(torch), vars(torch.random)):
            for name in ("manual_seed", "seed", "set_rng_state"):
                _set(undone, scope, name, _seeding(name, scope[name]))
        try:
            yield
        finally:
            environ.__getitem__ = get
            builtins.open = io.open = opened


def _seeding(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def seeding(*args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        if is_users(frame.f_code.co_filename) and not _is_installed(frame):
            raise CaptureError(
                f"The model calls torch.{name} at {location(origin_at(frame))}\n"
                "in forward, which a graph cannot record. Call it in the training loop; or draw "
                "the numbers once, in __init__, and register them as a buffer."
            )
        return real(*args, **kwargs)

    return seeding


def _refuse(frame: FrameType | None, what: str, thread: int) -> None:
    """Raise `CaptureError` if the innermost frame outside the standard library is the user's.

    NumPy, torch.serialization, PIL and pandas count as the standard library.
    """
    if threading.get_ident() != thread:  # another thread, such as one that loads data
        return
    while frame is not None and _reads_for_others(frame):
        frame = frame.f_back
    if frame is None or not is_users(frame.f_code.co_filename) or _is_installed(frame):
        return
    raise CaptureError(
        f"The model reads {what} at {location(origin_at(frame))}\n"
        "in forward, which would be frozen: a captured graph is the same for every step. Read "
        "it in __init__ and keep it in an attribute or a buffer, or pass it as an input."
    )


def _reads_for_others(frame: FrameType) -> bool:
    module: str = frame.f_globals.get("__name__") or ""
    return module != "autopar" and (
        module.partition(".")[0] in sys.stdlib_module_names - {"__main__"}
        or module.startswith(("numpy", "torch.serialization", "PIL.", "pandas."))
    )


def _is_installed(frame: FrameType) -> bool:
    module: str = frame.f_globals.get("__name__") or ""
    return is_library(module) or "site-packages" in frame.f_code.co_filename
