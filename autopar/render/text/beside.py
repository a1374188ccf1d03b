"""Renders a measured step and its prediction as tables; equal lines of numbered blocks are summed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.table import Table

from autopar.ir.units import seconds
from autopar.profile.traced_step import Beside, Line
from autopar.render.text.table import Label, row, table, times


def step_beside(found: Beside) -> RenderableType:
    """Return tables of the step, its operator groups, and its collectives."""
    return Group(_step(found), "", _lines(found.lines), "", _flows(found))


def _step(found: Beside) -> Table:
    numbers = ("predicted", "measured", "ratio")
    made = table(f"step of {found.of.model} on {found.of.mesh}", "part", *numbers, right=numbers)
    for name, (predicted_s, measured_s) in parts_of(found).items():
        row(made, name, seconds(predicted_s), seconds(measured_s), _ratio(predicted_s, measured_s))
    row(made, "step, traced", "", seconds(found.traced_step_s), "")
    return made


def parts_of(found: Beside) -> dict[str, tuple[float, float]]:
    """Return the parts of a step as (predicted, measured) seconds."""
    lines = found.lines
    return {
        "operators, forward": (
            sum(line.predicted_forward_s for line in lines),
            sum(line.measured_forward_s for line in lines if line.source),
        ),
        "operators, backward": (
            sum(line.predicted_backward_s for line in lines),
            sum(line.measured_backward_s for line in lines if line.source),
        ),
        "collectives, hidden ones too": (
            sum(flow.predicted_s for flow in found.flows),
            sum(flow.measured_s for flow in found.flows),
        ),
        "optimizer": (found.predicted_update_s, found.measured_update_s),
        "step": (found.predicted_step_s, found.measured_step_s),
    }


def _lines(lines: Sequence[Line]) -> Table:
    numbers = ("forward", "measured", "backward", "measured ")
    made = table("operator groups, predicted and measured", "line", "", *numbers, "times are",
                 right=("", *numbers))  # fmt: skip
    folded: defaultdict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in lines:
        folded[re.sub(r"\b\d+\b", "*", line.block), line.place].append(line)
    for (block, place), group in folded.items():
        whole = _sum(group)
        cells = (
            whole.predicted_forward_s, whole.measured_forward_s,
            whole.predicted_backward_s, whole.measured_backward_s,
        )  # fmt: skip
        label = Label(f"{block} {place}".strip() or "(results)")
        made.add_row(label, times(len(group)), *map(seconds, cells), whole.source)
    return made


def _sum(group: Sequence[Line]) -> Line:
    sources = {word for line in group for word in line.source.split(", ") if word}
    return replace(
        group[0],
        operators=sum(line.operators for line in group),
        source=", ".join(sorted(sources)),
        predicted_forward_s=sum(line.predicted_forward_s for line in group),
        measured_forward_s=sum(line.measured_forward_s for line in group),
        predicted_backward_s=sum(line.predicted_backward_s for line in group),
        measured_backward_s=sum(line.measured_backward_s for line in group),
    )


def _flows(found: Beside) -> Table:
    numbers = ("calls", "seen", "predicted", "measured", "ratio")
    made = table("collectives of a step", "axis", "collective", "when", *numbers, right=numbers)
    for flow in found.flows:
        row(made, flow.axis, flow.collective, flow.when,
            str(flow.predicted_calls), str(flow.measured_calls),
            seconds(flow.predicted_s), seconds(flow.measured_s),
            _ratio(flow.predicted_s, flow.measured_s))  # fmt: skip
    return made


def _ratio(predicted_s: float, measured_s: float) -> str:
    return f"{predicted_s / measured_s:.2f}" if measured_s else ""
