"""Seconds of a call from those that were timed: its own, or of the nearest sizes, or none.

Of sizes that were not timed the roofline knows how they compare: the ratio of measured to modelled
seconds varies slowly with size.  So an unmeasured call gets the modelled seconds times the mean ratio
(geometric, weighted by nearness) of the nearest measured calls of its family.  Nearness is counted in
factors of operations and of bytes; beyond `FARTHEST` nothing is concluded.
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
"""The roofline's seconds."""

NEIGHBOURS = 3
FARTHEST = math.log(8.0)
"""The distance of a call of eight times the work, or half the work on four times the bytes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Seconds of both passes, and where they are from."""

    forward_s: float
    backward_s: float
    source: Source


@dataclass(frozen=True)
class Times:
    """All that was timed in one setting."""

    setting: Setting
    every: Mapping[str, Timed]
    """By the text of the call."""

    @cached_property
    def digest(self) -> str:
        """Twelve hex digits of the setting and all times."""
        lines = sorted(f"{text} {t.forward} {t.backward}" for text, t in self.every.items())
        return hashlib.sha256("\n".join([str(self.setting), *lines]).encode()).hexdigest()[:12]

    @cached_property
    def families(self) -> Mapping[str, tuple[Timed, ...]]:
        """Calls that differ in sizes alone."""
        found: defaultdict[str, list[Timed]] = defaultdict(list)
        for timed in self.every.values():
            found[timed.call.family].append(timed)
        return {family: tuple(members) for family, members in found.items()}

    def of(self, call: Call, model: Model) -> Answer:
        """Measured, interpolated or modelled seconds of a call."""
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
    """By the roofline alone."""
    backward_s = 0.0 if call.backward is None else model(call.backward)
    return Answer(model(call.forward), backward_s, "modelled")


def _made_of(call: Call, timed: Timed) -> Timed:
    """A call of the same family, of as many of the framework's calls: a database does not keep these."""
    back, like = timed.call.backward, call.backward
    if back is not None and like is not None:
        back = replace(back, calls=like.calls)
    forward = replace(timed.call.forward, calls=call.forward.calls)
    return replace(timed, call=replace(timed.call, forward=forward, backward=back))


def _by_distance(pair: tuple[float, Timed]) -> tuple[float, str]:
    """Ties are broken by the call, so that equal databases give equal answers."""
    return pair[0], pair[1].call.text


def _distance(one: Work, other: Work) -> float:
    """In factors of work and bytes, the larger of the two; views move none."""
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
    """The geometric mean, weighted by nearness; a size that differs by a tenth counts as the same."""
    found = [(1.0 / (distance + 0.1), ratio) for distance, ratio in pairs if ratio > 0]
    weight = sum(w for w, _ in found)
    return math.exp(sum(w * math.log(ratio) for w, ratio in found) / weight) if found else 1.0
