"""A real step under `torch.profiler`: seconds by operator group, conversion and collective.

Forward seconds are those of the names that the runtime gives groups.  A backward's operators carry the
sequence numbers of the forward's, by which they find their group.  Collectives are looked up by the
name that they were issued under, and last as long as their backend says.
"""

from __future__ import annotations

import re
import statistics
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from autopar.runtime.marks import Numbered, numbering
from autopar.runtime.named import CHECKS, PREFIX

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
"""The names of a step's three parts."""
_EVALUATE = "autograd::engine::evaluate_function: "
_ISSUED = re.compile(r"c10d::(\w+)")
_CARRIED = re.compile(r"(?:gloo|nccl|mpi|ucc):(\w+)")
KINDS = ("reduce_scatter", "all_gather", "all_reduce", "all_to_all")
Flow = tuple[str, str, str]
"""Axis, collective, and when: forward, backward, or once a step for parameters or gradients."""


def _zeros() -> dict[Any, float]:
    return defaultdict(float)


@dataclass
class Trace:
    """Seconds of one step on one rank; `step_s` without a profiler, `traced_s` with it."""

    step_s: float = 0.0
    traced_s: float = 0.0
    parts: dict[str, float] = field(default_factory=_zeros)
    """Forward, backward and update, as spans."""
    forward_s: dict[str, float] = field(default_factory=_zeros)
    """By the label of a group or conversion."""
    backward_s: dict[str, float] = field(default_factory=_zeros)
    calls: Counter[Flow] = field(default_factory=Counter)
    collective_s: dict[Flow, float] = field(default_factory=_zeros)


def traced(step: Callable[[], None], steps: int = 5, warm: int = 3) -> Trace:
    """The mean of several traced steps; each must name its parts by `part`."""
    for _ in range(warm):
        step()
    plain = [_seconds(step) for _ in range(max(steps, 3))]
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities):
        step()  # the variant with names is made now
    with numbering() as numbers, torch.profiler.profile(activities=activities) as profiler:
        traced_s = [_seconds(step) for _ in range(steps)]
    made = read(profiler.events(), numbers)
    every: tuple[dict[Any, float], ...] = (
        made.parts, made.forward_s, made.backward_s, made.collective_s,
    )  # fmt: skip
    for seconds in every:
        for key in seconds:
            seconds[key] /= steps
    for flow in made.calls:
        made.calls[flow] = round(made.calls[flow] / steps)
    made.step_s, made.traced_s = statistics.median(plain), statistics.median(traced_s)
    return made


def part(name: str) -> Any:
    """A span around forward, backward or update."""
    return torch.profiler.record_function(PREFIX + name)


def _seconds(step: Callable[[], None]) -> float:
    _synchronise()
    start = time.perf_counter()
    step()
    _synchronise()
    return time.perf_counter() - start


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@dataclass(frozen=True, slots=True)
class _Span:
    start: float
    end: float
    label: str
    seconds: float


class _Spans:
    """Spans of which none overlaps another of its thread, by start."""

    def __init__(self, events: Iterable[tuple[int, _Span]]) -> None:
        by_thread: defaultdict[int, list[_Span]] = defaultdict(list)
        for thread, span in events:
            by_thread[thread].append(span)
        self._spans = {t: sorted(every, key=lambda s: s.start) for t, every in by_thread.items()}
        self._starts = {t: [s.start for s in every] for t, every in self._spans.items()}

    def around(self, event: Any) -> str | None:
        """The label of the span that an event begins in."""
        return self.at(event.thread, event.time_range.start)

    def at(self, thread: int, moment: float) -> str | None:
        """The label of the span around a moment."""
        place = bisect_right(self._starts.get(thread, []), moment) - 1
        if place < 0:
            return None
        span = self._spans[thread][place]
        return span.label if moment < span.end else None


def read(events: Sequence[Any], numbers: Sequence[Numbered] = ()) -> Trace:
    """What a profiler's events say of a step; `numbers` are the steps of autograd that spans made."""
    made = Trace()
    named = [(e.thread, _span(e)) for e in events if e.name.startswith(PREFIX) and not _on_gpu(e)]
    for _, span in named:
        if span.label in (FORWARD, BACKWARD, UPDATE):
            made.parts[span.label] += span.seconds
    ends = [s for _, s in named if s.label == BACKWARD]
    groups = _Spans((t, s) for t, s in named if "|" in s.label)
    label_of = {n: words for first, end, words in numbers for n in range(first, end)}
    passes = [
        (e.thread, _span(e, label_of.get(e.sequence_nr, "")))
        for e in events
        if e.name.startswith(_EVALUATE)
    ]
    for _, span in passes:
        made.backward_s[span.label] += span.seconds
    backward = _Spans(passes)
    for thread, span in named:
        if "|" not in span.label or span.label == CHECKS:
            continue
        if not _within(span.start, ends):
            made.forward_s[span.label] += span.seconds
            continue
        # What a pass of autograd has to wait for is not its own: sums of gradients, gathers again.
        made.backward_s[span.label] += span.seconds
        around = backward.at(thread, span.start)
        if around is not None:
            made.backward_s[around] -= span.seconds
    for event, kind, seconds in _collectives(events):
        label = groups.around(event) or backward.around(event) or ""
        if label == CHECKS:
            continue
        late = _within(event.time_range.start, ends)
        flow = _flow(label, kind, late)
        made.calls[flow] += 1
        made.collective_s[flow] += seconds
    return made


def _within(moment: float, spans: Iterable[_Span]) -> bool:
    return any(span.start <= moment < span.end for span in spans)


def _span(event: Any, label: str | None = None) -> _Span:
    """Where kernels were launched, they are what took time."""
    span = event.time_range
    name = event.name.removeprefix(PREFIX) if label is None else label
    spent = event.device_time_total or span.elapsed_us()
    return _Span(span.start, span.end, name, spent / 1e6)


def _on_gpu(event: Any) -> bool:
    return str(event.device_type).endswith("CUDA")


def _collectives(events: Sequence[Any]) -> Iterator[tuple[Any, str, float]]:
    """Collectives as they were issued: the event, the kind, and the seconds that the backend took.

    A backend begins them in the order in which they were issued; what it calls them is its own affair
    (gloo scatters sums by an all-reduce).  Where it tells of more or fewer, seconds are unknown: 0.
    """
    in_order = sorted(events, key=lambda e: e.time_range.start)
    issued = [(e, kind) for e in in_order for kind in _kinds(_ISSUED, e)]
    carried = [e for e in in_order for _ in _kinds(_CARRIED, e)]
    carried = [e for e in carried if _on_gpu(e)] or carried
    known = len(carried) == len(issued)
    for place, (event, kind) in enumerate(issued):
        yield event, kind, carried[place].time_range.elapsed_us() / 1e6 if known else 0.0


def _kinds(pattern: re.Pattern[str], event: Any) -> Iterator[str]:
    """The kind of collective that an event's name means, if any: ``_allgather_base_`` is a gather."""
    found = pattern.match(event.name)
    plain = found[1].replace("_", "") if found else ""
    for kind in KINDS:
        if kind.replace("_", "") in plain:
            yield kind
            return


def _flow(label: str, kind: str, late: bool) -> Flow:
    """Where a collective belongs, by the label that it was issued under."""
    path, _, what = (*label.split(" | "), "", "", "")[:3]
    axis = what.rpartition(" ")[2]
    direction = BACKWARD if late else FORWARD
    return axis, kind, path if path in ("parameters", "gradients") else direction


def by_group(seconds: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """Seconds of operators by (block, line); conversions have a line of their own."""
    found = _zeros()
    for label, value in seconds.items():
        path, place, what = (*label.split(" | "), "", "", "")[:3]
        if not is_conversion(label):
            found[path, place] += value
        else:
            found[path, f"{place} {what}"] += value
    return found


def is_conversion(label: str) -> bool:
    """Whether a label names a verb, or what the runtime does once a step."""
    path, _, what = (*label.split(" | "), "", "", "")[:3]
    return path in ("parameters", "gradients", "regather") or " " in what
