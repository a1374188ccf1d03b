"""Memoises tables by the identity of their arguments.

Equal requests return the same object, by which the solver recognises equal tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from autopar.ir.graph import Tensor

T = TypeVar("T")


class Once:
    """A cache keyed by a name, the identities of `about`, and the value of `also`.

    The objects in `about` are kept alive with the entry, so that their ids are not reused.
    """

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


def signature(*tensors: Tensor) -> tuple[object, ...]:
    """Return a key of the tensors that does not depend on their names."""
    return tuple((t.shape, t.dtype, t.differentiable) for t in tensors)
