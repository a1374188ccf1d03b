"""Adds the values that forward and the loss read besides weights and inputs to a program's key.

If such a value has changed, the graph is captured again, on this rank only; if the graph is the same,
its program is reused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from autopar.request.model_state import Outside

VALUES = 5
"""Number of values of one place that triggers the warning: each costs a capture, and maybe a plan."""


MOST = 64
"""Largest number of programs that are kept, the first included; the least recently used is dropped."""
KEYS = 8
"""Largest number of keys per program."""


class Kept(dict[Any, Any]):
    """LRU cache of programs by batch, of at most `MOST` programs, of which the first always stays.

    Ranks may have different keys for one program, but use and drop the same programs: if only one rank
    dropped a program, it would plan it again and wait for the others.
    """

    def use(self, key: Any) -> Any:
        """Return the program of a key, and mark it as most recently used."""
        self[key] = found = self.pop(key)
        return found

    def keep(self, key: Any, made: Any, first: Any) -> None:
        """Add a program; drop the least recently used ones with all their keys."""
        self[key] = made
        for old in [each for each, program in self.items() if program is made][:-KEYS]:
            del self[old]
        used = {id(program): program for program in reversed(self.values())}
        others = [each for each, program in used.items() if program is not first]
        gone = set(others[MOST - (len(used) - len(others)) :])
        for old in [each for each, program in self.items() if id(program) in gone]:
            del self[old]

    def alike(self, found: Any) -> Any:
        """Return `found` as it is stored here: for a tuple of programs, the stored tuple of the same."""
        if not isinstance(found, tuple):
            return found
        same = (p for p in self.values() if all(a is b for a, b in zip(p, found, strict=True)))
        return next(same, found)

    def of_graph(self, captured: str) -> Any:
        """Return the pipeline of a captured graph, if there is one."""
        return next((built for built in self.values() if built.captured == captured), None)


class Surroundings:
    """The outside values last seen by the programs of one model."""

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
        """Return `key` with the outside values.

        For new values, `known` captures again and returns the program if it exists, which is then kept
        under the new key as well.
        """
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
                        f"{place} has had {VALUES} values. Code of the model or its loss reads "
                        "it, so the model is captured again for each new value, and planned "
                        "again if the graph differs. Pass it in the batch as a tensor, "
                        "torch.tensor(value), where it may change freely; or register it as a "
                        "buffer, if the model holds it; or move it out of that code.",
                        stacklevel=2,
                    )
