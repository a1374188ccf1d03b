"""Skips checks that only raise: assertions, ``if ...: raise`` in libraries, those of distributions.

A graph cannot contain them, and the values that they guard do not depend on them. Capture assumes
that they pass.
"""

from __future__ import annotations

import contextlib
import dis
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.distributions import Distribution

from autopar.capture import _torch

INSTALLED = {"site-packages", "dist-packages"}
"""Folders of libraries, where users cannot turn an ``if ...: raise`` into an assertion."""
ASKED = frozenset(
    [
        _torch.TRUTH, torch.Tensor.item, torch.is_nonzero, torch.Tensor.is_nonzero,
        torch.equal, torch.Tensor.equal, torch.allclose, torch.Tensor.allclose,
    ]
)  # fmt: skip
"""Functions that convert a tensor's value to a Python truth value."""


def passed(func: Any, args: tuple[Any, ...], frame: FrameType | None) -> bool | None:
    """Return the truth value with which a check passes.

    Return None if the values are known or the caller does more than check.
    """
    if func not in ASKED or frame is None:
        return None
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if all(_torch.known_value(tensor) is not None for tensor in tensors):
        return None
    return _wanted(frame.f_code).get(frame.f_lasti)


@lru_cache(maxsize=1024)
def _wanted(code: CodeType) -> dict[int, bool]:
    """Map code offsets to the truth value that jumps over code that only raises."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "CACHE"]
    raises = {step.offset for step in steps if step.opname == "LOAD_ASSERTION_ERROR"}
    if INSTALLED & set(Path(code.co_filename).parts):
        raises |= _raising(code, steps)
    found: dict[int, bool] = {}
    for at, step in enumerate(steps[:-1]):
        if not ("JUMP" in step.opname and step.opname.endswith(("IF_TRUE", "IF_FALSE"))):
            continue
        if_true = step.opname.endswith("IF_TRUE")
        jumped, fell = step.argval in raises, steps[at + 1].offset in raises
        if jumped != fell:
            wanted = if_true if fell else not if_true
            found |= dict.fromkeys((step.offset, *_asking(steps[:at])), wanted)
    return found


def _asking(steps: list[dis.Instruction]) -> Iterator[int]:
    """Yield the offsets before a jump at which the truth value may be asked for instead.

    That is a call that returns it, from Python 3.13 on also a conversion or a comparison to a truth
    value.
    """
    for step in reversed(steps):
        if step.opname not in ("CALL", "CALL_FUNCTION_EX", "COMPARE_OP", "TO_BOOL"):
            return
        yield step.offset
        if step.opname != "TO_BOOL":
            return


def _raising(code: CodeType, steps: list[dis.Instruction]) -> set[int]:
    """Return the offsets from which the code runs straight into a ``raise`` that it does not catch."""
    bytecode: Any = dis.Bytecode(code)
    opens = {step.offset: step.opname for step in steps}
    after = dict(zip(opens, [*opens][1:], strict=False))
    caught = [
        range(entry.start, entry.end + 1)
        for entry in bytecode.exception_entries
        if opens.get(after.get(entry.target, -1)) != "WITH_EXCEPT_START"
    ]
    found: set[int] = set()
    straight = False
    for step in reversed(steps):
        if step.opname == "RAISE_VARARGS":
            straight = not any(step.offset in each for each in caught)
        elif "JUMP" in step.opname or step.opname.startswith(("RETURN", "RERAISE", "FOR_ITER")):
            straight = False
        if straight:
            found.add(step.offset)
    return found


@contextlib.contextmanager
def distributions_unchecked() -> Iterator[None]:
    """Within the context, `torch.distributions` does not validate arguments and samples."""
    kind: Any = Distribution
    made, sampled = kind.__init__, kind._validate_sample

    def unchecked(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args[:2], **{**kwargs, "validate_args": False})

    kind.__init__, kind._validate_sample = unchecked, lambda self, value: None
    try:
        yield
    finally:
        kind.__init__, kind._validate_sample = made, sampled


@contextlib.contextmanager
def tensor_checks_passed() -> Iterator[None]:
    """Within the context, torch's functions that check values of tensors pass."""
    names = ("_check_tensor_all", "_check_tensor_all_with", "_assert")
    before = {name: getattr(torch, name) for name in names}

    def checked(condition: Any, message: Any) -> None:
        if not _torch.is_fake(condition) or _torch.known_value(condition) is not None:
            before["_assert"](condition, message)

    for name in names:
        setattr(torch, name, lambda *args, **kwargs: None)
    setattr(torch, names[-1], checked)
    try:
        yield
    finally:
        vars(torch).update(before)
