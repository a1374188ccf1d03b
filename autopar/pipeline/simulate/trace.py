"""Writes a simulation in Chrome's trace event format, for chrome://tracing and ui.perfetto.dev.

Workers are the threads of one process, with their memory as counters.  Transfers are threads of a
second process, one per pair of workers, with arrows from the sending action to the waiting action.
Gradient reductions are threads of a third process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autopar.pipeline.simulate.simulate import Ran, Simulated

WORKERS, TRANSFERS, REDUCTIONS = 0, 1, 2
MICROSECONDS = 1e6
Event = dict[str, Any]


def trace(simulated: Simulated) -> dict[str, Any]:
    """Return the trace as an object for `json.dump`."""
    events = [
        *_names(simulated),
        *_actions(simulated),
        *_updates(simulated),
        *_memory(simulated),
        *_transfers(simulated),
        *_reductions(simulated),
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _rows(simulated: Simulated) -> dict[tuple[int, int], int]:
    """Return (sender, receiver) -> row of its transfers."""
    pairs = sorted({(lane.sender, lane.receiver) for lane in simulated.program.lanes})
    return {pair: row for row, pair in enumerate(pairs)}


def _names(simulated: Simulated) -> Iterator[Event]:
    def name(kind: str, process: int, row: int, text: str) -> Event:
        return {"name": kind, "ph": "M", "pid": process, "tid": row, "args": {"name": text}}

    yield name("process_name", WORKERS, 0, simulated.schedule.name)
    yield name("process_name", TRANSFERS, 0, "transfers")
    for worker, held in enumerate(simulated.schedule.held):
        stages = ", ".join(map(str, held))
        yield name("thread_name", WORKERS, worker, f"worker {worker}, stages {stages}")
    for (sender, receiver), row in _rows(simulated).items():
        yield name("thread_name", TRANSFERS, row, f"{sender} to {receiver}")
    if simulated.reductions:
        yield name("process_name", REDUCTIONS, 0, "sums of gradients")
    for worker in sorted({worker for each in simulated.reductions for worker in each.workers}):
        yield name("thread_name", REDUCTIONS, worker, f"worker {worker}")


def _actions(simulated: Simulated) -> Iterator[Event]:
    for row in simulated.ran:
        for run in row:
            action = run.action
            yield {
                "name": str(action), "cat": action.kind, "ph": "X", "pid": WORKERS,
                "tid": run.worker, "ts": run.start * MICROSECONDS,
                "dur": (run.end - run.start) * MICROSECONDS,
                "args": {"stage": action.stage, "microbatch": action.microbatch},
            }  # fmt: skip


def _updates(simulated: Simulated) -> Iterator[Event]:
    for worker, (begin, end) in enumerate(simulated.updates):
        if end > begin:
            yield {
                "name": "update", "cat": "U", "ph": "X", "pid": WORKERS, "tid": worker,
                "ts": begin * MICROSECONDS, "dur": (end - begin) * MICROSECONDS,
            }  # fmt: skip


def _memory(simulated: Simulated) -> Iterator[Event]:
    for worker in range(len(simulated.schedule.workers)):
        for when, nbytes in simulated.memory(worker):
            yield {
                "name": f"bytes of worker {worker}", "ph": "C", "pid": WORKERS, "tid": worker,
                "ts": when * MICROSECONDS, "args": {"bytes": nbytes},
            }  # fmt: skip


def _transfers(simulated: Simulated) -> Iterator[Event]:
    """Yield an asynchronous span from start to arrival (spans of a row may overlap), and an arrow."""
    rows = _rows(simulated)
    ran: list[Ran] = [run for row in simulated.ran for run in row]
    for number, (producer, consumer, lane_number, start, end) in enumerate(simulated.times[2]):
        lane = simulated.program.lanes[lane_number]
        edge = simulated.program.graph.edges[lane.edge]
        what = "gradients" if lane.backward else "activations"
        stages = (edge.target, edge.source) if lane.backward else (edge.source, edge.target)
        sent = {
            "name": f"{what} {stages[0]} to {stages[1]}, microbatch {ran[producer].action.microbatch}",
            "cat": what, "id": number, "pid": TRANSFERS, "tid": rows[lane.sender, lane.receiver],
        }  # fmt: skip
        yield {**sent, "ph": "b", "ts": start * MICROSECONDS}
        yield {**sent, "ph": "e", "ts": end * MICROSECONDS}
        arrow = {"name": what, "cat": "arrows", "id": number, "pid": WORKERS}
        left, taken = ran[producer], ran[consumer]
        yield {**arrow, "ph": "s", "tid": left.worker, "ts": left.end * MICROSECONDS}
        yield {**arrow, "ph": "f", "bp": "e", "tid": taken.worker, "ts": taken.start * MICROSECONDS}


def _reductions(simulated: Simulated) -> Iterator[Event]:
    for reduction in simulated.reductions:
        for worker in reduction.workers:
            yield {
                "name": f"stage {reduction.stage}", "cat": "reduction", "ph": "X",
                "pid": REDUCTIONS, "tid": worker, "ts": reduction.start * MICROSECONDS,
                "dur": (reduction.end - reduction.start) * MICROSECONDS,
            }  # fmt: skip
