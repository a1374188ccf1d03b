"""Equal questions are answered once, with one object: by it the solver knows equal tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from autopar.ir.graph import Tensor

T = TypeVar("T")


class Once:
    """Answers by the identities of what was asked about, which is kept alive with its answer."""

    def __init__(self) -> None:
        self._answers: dict[object, tuple[object, object]] = {}

    def __call__(
        self, make: Callable[[], T], question: str, *about: object, also: object = ()
    ) -> T:
        key = (question, *map(id, about), also)
        if key not in self._answers:
            self._answers[key] = (make(), about)
        answer: T = self._answers[key][0]  # type: ignore[assignment]
        return answer


def looks(*tensors: Tensor) -> tuple[object, ...]:
    """What equal tensors have in common, whatever they are called."""
    return tuple((t.shape, t.dtype, t.differentiable) for t in tensors)
