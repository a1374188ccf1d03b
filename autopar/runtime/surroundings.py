"""Programs are looked up by what forward and the loss read outside of the model's modules, too.

Where a value there is other than before, the graph is captured again, on this rank alone; where it
is the same, its program serves.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from autopar.request.model_state import Outside

VALUES = 5
"""So many values of a place are heard of: each costs a capture, and perhaps a plan."""


MOST = 64
"""Programs of other batches that are kept, beside the first; the longest unused goes first."""


class Kept(dict[Any, Any]):
    """Programs by batch, the last used last; no more than `MOST`, and never without the first."""

    def use(self, key: Any) -> Any:
        """The program of a key, which is now the last used."""
        self[key] = found = self.pop(key)
        return found

    def keep(self, key: Any, made: Any, first: Any) -> None:
        """One more; those that were not used for longest go."""
        self[key] = made
        while len(self) > MOST:
            others = (old for old, program in self.items() if program is not first)
            del self[next(others, next(iter(self)))]


class Surroundings:
    """Of the programs of one model."""

    def __init__(self) -> None:
        self._last: dict[Any, Outside] = {}
        self._values: dict[str, set[Any]] = {}

    def key(
        self,
        key: Any,
        now: Outside,
        kept: Kept,
        first: Any,
        is_same: Callable[[Any], bool],
    ) -> tuple[Any, Outside]:
        """`key` and what is around; `is_same`: whether capturing again gives this program."""
        before = self._last.get(key, ())
        last = kept.get((key, before))
        if now != before and (key, now) not in kept:
            self._warn(now)
            if last is not None and is_same(last):
                kept.keep((key, now), last, first)
        self._last[key] = now
        if len(self._last) > MOST:
            self._last = {key: now for key, now in self._last.items() if (key, now) in kept}
        return key, now

    def _warn(self, now: Outside) -> None:
        for place, value in now:
            values = self._values.setdefault(place, set())
            if len(values) < VALUES and value not in values:
                values.add(value)
                if len(values) == VALUES:
                    warnings.warn(
                        f"{place} has had {VALUES} values. It is named by code of the model or its "
                        "loss, which is captured, and where the graph is another one planned, anew "
                        "for each. Pass it in the batch as a tensor, torch.tensor(value), where it may "
                        "change freely; or keep it where that code does not name it.",
                        stacklevel=2,
                    )
