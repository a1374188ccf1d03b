"""One operation under way: its inputs are watched, its results poisoned until it is waited for."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import Work

Tensors = Sequence[torch.Tensor]
OURS = {str(Path(__file__).parent / name) for name in ("work.py", "process_group.py", "queues.py")}


class StrictError(RuntimeError):
    """A rule of NCCL was broken."""


def stack() -> str:
    """Where the operation was issued: the frames outside of torch and of this package."""
    frames = [
        f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_stack()
        if "/torch/" not in frame.filename and frame.filename not in OURS
    ]
    return " < ".join(reversed(frames[-6:]))


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """A flat copy's bytes: NaN equals itself, and every dtype can be sent."""
    return x.detach().reshape(-1).contiguous().view(torch.uint8)


def staged(x: torch.Tensor) -> torch.Tensor:
    """A contiguous copy."""
    return x.detach().clone(memory_format=torch.contiguous_format)


def poison(x: torch.Tensor) -> None:
    """Fill with what no computation can use unnoticed.  The version is not changed: a kernel's write."""
    value: Any = (
        torch.iinfo(x.dtype).max - 41 if not _is_real(x) and x.dtype != torch.bool else None
    )
    if _is_real(x):
        value = float("nan")
    x.data.fill_(True if value is None else value)


def _is_real(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


class Pending(Work):  # type: ignore[misc]
    """An issued operation; `wait` hands its results over.

    `run` computes the results, in the order of `outputs`, on the thread of its queue.
    """

    def __init__(
        self,
        what: str,
        inputs: Tensors,
        outputs: Tensors,
        run: Callable[[list[torch.Tensor]], list[torch.Tensor]],
    ) -> None:
        super().__init__()
        self.what, self.stack = what, stack()
        self._run = run
        self._given = [staged(x) for x in inputs]
        own = {x.untyped_storage().data_ptr() for x in outputs}
        self._watched = [
            (x, given)
            for x, given in zip(inputs, self._given, strict=True)
            if x.untyped_storage().data_ptr() not in own
        ]
        self._outputs = list(outputs)
        for x in outputs:
            poison(x)
        self._poisoned = [staged(x) for x in outputs]
        self._made: list[torch.Tensor] = []
        self._error: BaseException | None = None
        self._done, self._handed_over = threading.Event(), False
        self._lock = threading.Lock()

    def carry_out(self) -> None:
        """On the queue's thread."""
        try:
            self._made = self._run(self._given)
        except BaseException as error:
            self._error = error
        self._done.set()

    def wait(self, *_: Any) -> bool:
        """Block until it is done; raise what went wrong; write the results."""
        self._done.wait()
        with self._lock:
            if self._error is not None:
                raise StrictError(f"{self.what}: {self._error}\nissued at {self.stack}")
            if not self._handed_over:
                self._hand_over()
        return True

    def _hand_over(self) -> None:
        for x, given in self._watched:
            if not torch.equal(as_bytes(x), as_bytes(given)):
                raise StrictError(
                    f"{self.what}: its input of shape {tuple(x.shape)} was changed before it was waited "
                    f"for\nissued at {self.stack}\nwaited for at {stack()}"
                )
        for x, before in zip(self._outputs, self._poisoned, strict=True):
            if not torch.equal(as_bytes(x), as_bytes(before)):
                raise StrictError(
                    f"{self.what}: its result of shape {tuple(x.shape)} was written before it was "
                    f"waited for\nissued at {self.stack}\nwaited for at {stack()}"
                )
        for x, made in zip(self._outputs, self._made, strict=True):
            x.data.copy_(made.view(x.shape))
        self._given, self._watched, self._poisoned, self._made = [], [], [], []
        self._handed_over = True

    def is_completed(self) -> bool:
        return self._done.is_set()

    def is_success(self) -> bool:
        return self._done.is_set() and self._error is None
