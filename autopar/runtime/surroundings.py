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
KEYS = 8
"""So many keys lead to one program."""


class Kept(dict[Any, Any]):
    """Programs by batch, the last used last; no more than `MOST`, and never without the first.

    Ranks may have other keys for one program, but use and lose the same programs: a rank that alone had
    lost one would plan it, and wait for the others.
    """

    def use(self, key: Any) -> Any:
        """The program of a key, which is now the last used."""
        self[key] = found = self.pop(key)
        return found

    def keep(self, key: Any, made: Any, first: Any) -> None:
        """One more; programs that were not used for longest go, with all their keys."""
        self[key] = made
        for old in [each for each, program in self.items() if program is made][:-KEYS]:
            del self[old]
        used = {id(program): program for program in reversed(self.values())}
        others = [each for each, program in used.items() if program is not first]
        gone = set(others[MOST - (len(used) - len(others)) :])
        for old in [each for each, program in self.items() if id(program) in gone]:
            del self[old]

    def alike(self, found: Any) -> Any:
        """The same as it is here: of programs that go together, the tuple in which they do."""
        if not isinstance(found, tuple):
            return found
        same = (p for p in self.values() if all(a is b for a, b in zip(p, found, strict=True)))
        return next(same, found)

    def of_graph(self, captured: str) -> Any:
        """The pipeline of a captured graph, if it is here."""
        return next((built for built in self.values() if built.captured == captured), None)


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
        known: Callable[[], Any],
    ) -> tuple[Any, Outside]:
        """`key` and what is around; `known` captures again, and gives what is there of it."""
        if now != self._last.get(key, ()) and (key, now) not in kept:
            self._warn(now)
            found = known()
            if found is not None:
                kept.keep((key, now), kept.alike(found), first)
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
