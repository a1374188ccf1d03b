"""Draws a simulated schedule as text: one row per worker, time to the right.

    worker 0  F0 F1 F2 F3 ·········B0--- F4 B1--- ... U--

``F3`` is the forward of microbatch 3, extended with ``-`` to its end.  ``U`` is the update after the
last action, ``·`` is idle time.  On workers with several stages a letter denotes the stage: a for the
first.  Older versions of weights are not shown.
"""

from __future__ import annotations

import math

from autopar.pipeline.simulate import Simulated
from autopar.pipeline.simulate.simulate import Ran

WIDEST = 400


def timeline(simulated: Simulated, per_second: float | None = None) -> str:
    """Return the drawing, with `per_second` columns per second.

    By default every label has room, unless that takes more than `WIDEST` columns.
    """
    schedule = simulated.schedule
    several = any(len(held) > 1 for held in schedule.held)
    labels = [
        [_label(run, schedule.held[worker], several) for run in row]
        for worker, row in enumerate(simulated.ran)
    ]
    scale = _scale(simulated, labels) if per_second is None else per_second
    lines = []
    for worker, (row, texts) in enumerate(zip(simulated.ran, labels, strict=True)):
        cells = ["·"] * round(simulated.step * scale)
        for run, text in zip(row, texts, strict=True):
            first, last = round(run.start * scale), round(run.end * scale)
            cells[first:last] = _drawn(text, last - first)
        first, last = (round(when * scale) for when in simulated.updates[worker])
        cells[first:last] = _drawn("U", last - first)
        lines.append(f"worker {worker:<{len(str(len(labels)))}} {''.join(cells)}".rstrip())
    return "\n".join(lines) + "\n"


def _label(run: Ran, held: tuple[int, ...], several: bool) -> str:
    """Return ``F3``, or ``F3b`` on the worker's second stage."""
    stage = chr(ord("a") + held.index(run.action.stage) % 26) if several else ""
    return f"{run.action.kind}{run.action.microbatch}{stage}"


def _scale(simulated: Simulated, labels: list[list[str]]) -> float:
    """Return columns per second, so that a label and a space fit into every action that takes time."""
    runs = [run for row in simulated.ran for run in row]
    texts = [text for row in labels for text in row]
    needed = max(
        (
            (len(text) + 1) / (run.end - run.start)
            for run, text in zip(runs, texts, strict=True)
            if run.end > run.start
        ),
        default=1.0,
    )
    return min(math.ceil(needed * 1e6 - 1e-3) / 1e6, WIDEST / (simulated.step or 1.0))


def _drawn(text: str, width: int) -> str:
    """Return the label extended with dashes, and a space at the end if there is room for one."""
    if width <= len(text):
        return text[:width]
    return text.ljust(width - 1, "-") + " "
