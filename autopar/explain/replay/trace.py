"""Converts a replayed step to Chrome's trace event format, for ui.perfetto.dev."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autopar.explain.replay.played import Played
from autopar.pipeline.simulate import trace

MICROSECONDS = 1e6
LANES = ("compute", "communication", "hidden")


def trace_of(played: Played) -> dict[str, Any]:
    """Return the trace for `json.dump`: the simulator's own, or a process per group of equal ranks."""
    if played.simulated is not None:
        made = trace(played.simulated)
    else:
        made = {"traceEvents": list(_events(played)), "displayTimeUnit": "ms"}
    return {**made, "otherData": {"notes": "\n".join(played.notes)}}


def _events(played: Played) -> Iterator[dict[str, Any]]:
    for process, row in enumerate(played.rows):
        name = {"name": "process_name", "ph": "M", "pid": process, "tid": 0}
        yield {**name, "args": {"name": f"{played.model}, {row.name}"}}
        for thread, lane in enumerate(LANES):
            named = {"name": "thread_name", "ph": "M", "pid": process, "tid": thread}
            yield {
                **named,
                "args": {"name": "communication, overlapped" if thread == 2 else lane},
            }
        for span in row.spans:
            lane = "hidden" if span.hidden else span.lane
            yield {
                "name": span.what, "cat": lane, "ph": "X", "pid": process,
                "tid": LANES.index(lane), "ts": span.start * MICROSECONDS,
                "dur": (span.end - span.start) * MICROSECONDS,
            }  # fmt: skip
        for second, nbytes in row.memory:
            yield {
                "name": "bytes on a rank", "ph": "C", "pid": process, "ts": second * MICROSECONDS,
                "args": {"bytes": nbytes},
            }  # fmt: skip
