"""Traces a step with `torch.profiler`: seconds by operator group, conversion and collective.

Forward seconds are the spans that the runtime records per group.  Backward operators have the autograd
sequence numbers of the forward's, which map them to their group.  Collectives are identified by the
label under which they were issued; their duration is the backend's.
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

from autopar.ir.collectives import exchanged
from autopar.runtime.marks import Numbered, numbering
from autopar.runtime.named import CHECKS, PERMUTE, PREFIX

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
"""The names of a step's three parts."""
_EVALUATE = "autograd::engine::evaluate_function: "
_ISSUED = re.compile(r"c10d::(\w+)")
_CARRIED = re.compile(r"(?:gloo|nccl|mpi|ucc):(\w+)")
Flow = tuple[str, str, str]
"""Axis, collective, and when: forward, backward, or once a step for parameters or gradients."""


def _zeros() -> dict[Any, float]:
    return defaultdict(float)


@dataclass
class Trace:
    """Seconds of one step on one rank; `step_s` without the profiler, `traced_s` with it."""

    step_s: float = 0.0
    traced_s: float = 0.0
    parts: dict[str, float] = field(default_factory=_zeros)
    """Seconds of forward, backward and update."""
    forward_s: dict[str, float] = field(default_factory=_zeros)
    """Forward seconds by the label of a group or conversion."""
    backward_s: dict[str, float] = field(default_factory=_zeros)
    calls: Counter[Flow] = field(default_factory=Counter)
    collective_s: dict[Flow, float] = field(default_factory=_zeros)


def traced(step: Callable[[], None], steps: int = 5, warm: int = 3) -> Trace:
    """Return the mean of several traced steps; each must mark its parts with `part`."""
    for _ in range(warm):
        step()
    plain = [_seconds(step) for _ in range(max(steps, 3))]
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities):
        step()  # compiles the variant with labels before tracing
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
    """Return a profiler span for forward, backward or update."""
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
    """Spans sorted by start, without overlaps within a thread."""

    def __init__(self, events: Iterable[tuple[int, _Span]]) -> None:
        by_thread: defaultdict[int, list[_Span]] = defaultdict(list)
        for thread, span in events:
            by_thread[thread].append(span)
        self._spans = {t: sorted(every, key=lambda s: s.start) for t, every in by_thread.items()}
        self._starts = {t: [s.start for s in every] for t, every in self._spans.items()}

    def around(self, event: Any) -> str | None:
        """Return the label of the span in which an event begins."""
        return self.at(event.thread, event.time_range.start)

    def at(self, thread: int, moment: float) -> str | None:
        """Return the label of the span at a moment; None if there is none."""
        place = bisect_right(self._starts.get(thread, []), moment) - 1
        if place < 0:
            return None
        span = self._spans[thread][place]
        return span.label if moment < span.end else None


def read(events: Sequence[Any], numbers: Sequence[Numbered] = ()) -> Trace:
    """Build a trace from a profiler's events; `numbers` are the autograd nodes that spans created."""
    made = Trace()
    named = [(e.thread, _span(e)) for e in events if e.name.startswith(PREFIX) and not _on_gpu(e)]
    for _, span in named:
        if span.label in (FORWARD, BACKWARD, UPDATE):
            made.parts[span.label] += span.seconds
    ends = [s for _, s in named if s.label == BACKWARD]
    groups = _Spans((t, s) for t, s in named if "|" in s.label)
    permutes = _Spans((t, s) for t, s in named if s.label == PERMUTE)
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
        # Gradient all-reduces and repeated gathers within the backward are not its own time.
        made.backward_s[span.label] += span.seconds
        around = backward.at(thread, span.start)
        if around is not None:
            made.backward_s[around] -= span.seconds
    for event, kind, seconds in _collectives(events):
        label = groups.around(event) or backward.around(event) or ""
        if label == CHECKS:
            continue
        late = _within(event.time_range.start, ends)
        flow = _flow(label, permutes.around(event) or kind, late)
        made.calls[flow] += 1
        made.collective_s[flow] += seconds
    return made


def _within(moment: float, spans: Iterable[_Span]) -> bool:
    return any(span.start <= moment < span.end for span in spans)


def _span(event: Any, label: str | None = None) -> _Span:
    """Return an event's span; if it launched kernels, its seconds are theirs."""
    span = event.time_range
    name = event.name.removeprefix(PREFIX) if label is None else label
    spent = event.device_time_total or span.elapsed_us()
    return _Span(span.start, span.end, name, spent / 1e6)


def _on_gpu(event: Any) -> bool:
    return str(event.device_type).endswith("CUDA")


def _collectives(events: Sequence[Any]) -> Iterator[tuple[Any, str, float]]:
    """Yield collectives in issue order: the event, the kind, and the backend's seconds.

    A backend starts them in the order of issue, but may name them differently (gloo implements
    reduce-scatter by an all-reduce).  If it reports more or fewer, the seconds are unknown: 0.
    """
    in_order = sorted(events, key=lambda e: e.time_range.start)
    issued = [(e, kind) for e in in_order for kind in _kinds(_ISSUED, e)]
    carried = [e for e in in_order for _ in _kinds(_CARRIED, e)]
    carried = [e for e in carried if _on_gpu(e)] or carried
    known = len(carried) == len(issued)
    for place, (event, kind) in enumerate(issued):
        yield event, kind, carried[place].time_range.elapsed_us() / 1e6 if known else 0.0


def _kinds(pattern: re.Pattern[str], event: Any) -> Iterator[str]:
    """Yield the kind of collective of an event's name, if any: ``_allgather_base_`` is an all-gather."""
    found = pattern.match(event.name)
    plain = found[1].replace("_", "") if found else ""
    for kind in exchanged() if plain else ():
        if kind.replace("_", "") in plain:
            yield kind
            return


def _flow(label: str, kind: str, late: bool) -> Flow:
    """Return the flow of a collective, by the label under which it was issued."""
    path, _, what = (*label.split(" | "), "", "", "")[:3]
    axis = what.rpartition(" ")[2]
    direction = BACKWARD if late else FORWARD
    return axis, kind, path if path in ("parameters", "gradients") else direction


def by_group(seconds: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """Return the operators' seconds by (block, line); conversions have their own lines."""
    found = _zeros()
    for label, value in seconds.items():
        path, place, what = (*label.split(" | "), "", "", "")[:3]
        if not is_conversion(label):
            found[path, place] += value
        else:
            found[path, f"{place} {what}"] += value
    return found


def is_conversion(label: str) -> bool:
    """Return whether a label is a conversion's, or that of the runtime's work once per step."""
    path, _, what = (*label.split(" | "), "", "", "")[:3]
    return path in ("parameters", "gradients", "regather") or " " in what
