"""Seconds of a call from measured times: its own, interpolated from the nearest sizes, or modelled.

The ratio of measured to modelled (roofline) seconds varies slowly with size.  An unmeasured call
therefore gets the modelled seconds times the mean ratio (geometric, weighted by nearness) of the
nearest measured calls of its family.  Distance is measured in factors of operations and of bytes;
beyond `FARTHEST` the call is modelled.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from cost_models.measured.values import Call, Setting, Timed, Work

Source = Literal["measured", "interpolated", "modelled"]
Model = Callable[[Work], float]
"""Returns the roofline's seconds for some work."""

NEIGHBOURS = 3
FARTHEST = math.log(8.0)
"""Distance limit: a factor of eight in operations or in bytes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Seconds of forward and backward, and their source."""

    forward_s: float
    backward_s: float
    source: Source


@dataclass(frozen=True)
class Times:
    """All times measured in one setting."""

    setting: Setting
    every: Mapping[str, Timed]
    """Times by the call's text."""

    @cached_property
    def digest(self) -> str:
        """Return a digest of the setting and all times, as twelve hex digits."""
        lines = sorted(f"{text} {t.forward} {t.backward}" for text, t in self.every.items())
        return hashlib.sha256("\n".join([str(self.setting), *lines]).encode()).hexdigest()[:12]

    @cached_property
    def families(self) -> Mapping[str, tuple[Timed, ...]]:
        """Group the timed calls by family: calls that differ only in sizes."""
        found: defaultdict[str, list[Timed]] = defaultdict(list)
        for timed in self.every.values():
            found[timed.call.family].append(timed)
        return {family: tuple(members) for family, members in found.items()}

    def of(self, call: Call, model: Model) -> Answer:
        """Return the measured, interpolated or modelled seconds of a call."""
        timed = self.every.get(call.text)
        if timed is not None:
            backward_s = 0.0 if timed.backward is None else timed.backward.seconds
            return Answer(timed.forward.seconds, backward_s, "measured")
        near = tuple((distance, _made_of(call, timed)) for distance, timed in self._near(call))
        goes_back = call.backward is not None
        if not near or (goes_back and not any(t.backward is not None for _, t in near)):
            return modelled(call, model)
        return Answer(
            model(call.forward) * _ratio(_forward_ratios(near, model)),
            0.0
            if call.backward is None
            else model(call.backward) * _ratio(_backward_ratios(near, model)),
            "interpolated",
        )

    def _near(self, call: Call) -> Iterator[tuple[float, Timed]]:
        members = self.families.get(call.family, ())
        reached = ((_distance(call.forward, t.call.forward), t) for t in members)
        near = sorted((pair for pair in reached if pair[0] <= FARTHEST), key=_by_distance)
        yield from near[:NEIGHBOURS]


def modelled(call: Call, model: Model) -> Answer:
    """Return the roofline's seconds of a call."""
    backward_s = 0.0 if call.backward is None else model(call.backward)
    return Answer(model(call.forward), backward_s, "modelled")


def _made_of(call: Call, timed: Timed) -> Timed:
    """Return a timed call with the `calls` counts of `call`, which the database does not store."""
    back, like = timed.call.backward, call.backward
    if back is not None and like is not None:
        back = replace(back, calls=like.calls)
    forward = replace(timed.call.forward, calls=call.forward.calls)
    return replace(timed, call=replace(timed.call, forward=forward, backward=back))


def _by_distance(pair: tuple[float, Timed]) -> tuple[float, str]:
    """Sort key by distance; ties are broken by the call's text to be deterministic."""
    return pair[0], pair[1].call.text


def _distance(one: Work, other: Work) -> float:
    """Return the larger log-ratio of operations and of bytes; zero counts as one, for views."""
    flops = math.log(max(one.flops, 1.0) / max(other.flops, 1.0))
    nbytes = math.log(max(one.nbytes, 1.0) / max(other.nbytes, 1.0))
    return max(abs(flops), abs(nbytes))


def _forward_ratios(
    near: Iterable[tuple[float, Timed]], model: Model
) -> Iterator[tuple[float, float]]:
    for distance, timed in near:
        yield distance, timed.forward.seconds / model(timed.call.forward)


def _backward_ratios(
    near: Iterable[tuple[float, Timed]], model: Model
) -> Iterator[tuple[float, float]]:
    for distance, timed in near:
        if timed.backward is not None and timed.call.backward is not None:
            yield distance, timed.backward.seconds / model(timed.call.backward)


def _ratio(pairs: Iterable[tuple[float, float]]) -> float:
    """Return the geometric mean weighted by nearness; the offset of 0.1 keeps weights finite."""
    found = [(1.0 / (distance + 0.1), ratio) for distance, ratio in pairs if ratio > 0]
    weight = sum(w for w, _ in found)
    return math.exp(sum(w * math.log(ratio) for w, ratio in found) / weight) if found else 1.0
