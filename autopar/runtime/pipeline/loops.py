"""Notices loops over a stage's parameters that read a Python number of each.

What such a loop adds up or decides covers the parameters of one rank's stages alone.  A number that is
read for a second parameter, by the same calls of the user's code, is read in such a loop.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import torch
import torch.distributed as dist

from autopar.errors import InputError

OVER_STAGES = (
    'parallel.reduce_over_parameters(lambda p: p.grad.square().sum(), "sum") calls a function with each '
    'parameter of the model and reduces the results over all stages ("max", "min", "any" and "all" as '
    "well)."
)
OWN = (
    "For numbers of this rank's parameters alone read p.full_tensor(), on every rank of the stage."
)
LIBRARY = (str(Path(__file__).parents[2]), str(Path(dist.__file__).parent.parent))
"""Folders whose code reads numbers on behalf of the user's: autopar and torch."""
Place = tuple[tuple[CodeType, int], ...]
"""The user's calls, from the innermost: code and instruction."""


class Loops:
    """The numbers that were read since the last step, by the place that read them."""

    def __init__(self) -> None:
        self._read: dict[Place, str] = {}
        self.apart = False
        """Whether numbers of several parameters are collected for a reduction over all stages."""

    def forget(self) -> None:
        """Begin anew: numbers read in different steps are no loop over parameters."""
        self._read.clear()

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Accept all numbers inside: what is computed of them is reduced over all stages."""
        before, self.apart = self.apart, True
        try:
            yield
        finally:
            self.apart = before

    def note(self, parameter: str) -> None:
        """Record that a number is read; raise `InputError` if that was done for another parameter."""
        if self.apart:
            return
        place, line = _place()
        first = self._read.setdefault(place, parameter)
        if first != parameter:
            raise InputError(
                f"{line} reads a number of {parameter!r}, as it did of {first!r} before. This rank "
                "has only the parameters of its own pipeline stages, so that a sum, a maximum or a "
                "decision over such numbers would lack those of other stages, and differ between "
                f"ranks. {OVER_STAGES} {OWN}"
            )


def optimizer_that_steps() -> torch.optim.Optimizer | None:
    """Return the optimizer whose step runs now, without a closure, and for its parameters alone.

    A closure may read numbers for other purposes.
    """
    for frame in _frames():
        owner = frame.f_locals.get("self") if frame.f_code.co_name == "step" else None
        if isinstance(owner, torch.optim.Optimizer):
            taken = frame.f_code.co_varnames[1 : frame.f_code.co_argcount]
            return None if any(callable(frame.f_locals.get(name)) for name in taken) else owner
    return None


def _place() -> tuple[Place, str]:
    """Return the user's calls that are running, and the innermost line of them."""
    own = [frame for frame in _frames() if not frame.f_code.co_filename.startswith(LIBRARY)]
    line = f"{own[0].f_code.co_filename}:{own[0].f_lineno}" if own else "The program"
    return tuple((frame.f_code, frame.f_lasti) for frame in own), line


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
