"""Renders a measured step and its prediction as HTML tables."""

from __future__ import annotations

from html import escape

from autopar.ir.units import seconds
from autopar.profile.traced_step import Beside
from autopar.render.html.tables import table
from autopar.render.text.beside import parts_of

MOST = 12
"""Maximum number of source lines shown, those with the largest errors."""


def tables_of(found: Beside) -> str:
    """Return a sentence, and tables of parts, collectives, and the lines with the largest errors."""
    return "".join((
        _said(found),
        _parts(found),
        "<h3>Collectives</h3>" + _flows(found) if found.flows else "",
        "<h3>Largest errors by line</h3>" + _lines(found),
    ))  # fmt: skip


def _said(found: Beside) -> str:
    error = found.predicted_step_s / found.measured_step_s - 1
    return (
        f"<p>The step took {seconds(found.measured_step_s)}; the prediction was "
        f"{seconds(found.predicted_step_s)}, which is {abs(error):.1%} too "
        f"{'long' if error > 0 else 'short'}.</p>"
    )


def _parts(found: Beside) -> str:
    rows = [
        (escape(name), seconds(predicted), seconds(measured), _error(predicted, measured))
        for name, (predicted, measured) in parts_of(found).items()
    ]
    return table(("part", "predicted", "measured", "error"), rows, (1, 2, 3))


def _flows(found: Beside) -> str:
    rows = [
        (escape(flow.axis), escape(flow.collective), escape(flow.when), str(flow.predicted_calls),
         str(flow.measured_calls), seconds(flow.predicted_s), seconds(flow.measured_s),
         _error(flow.predicted_s, flow.measured_s))
        for flow in found.flows
    ]  # fmt: skip
    heads = ("axis", "collective", "when", "calls", "seen", "predicted", "measured", "error")
    return table(heads, rows, (3, 4, 5, 6, 7), is_wide=True)


def _lines(found: Beside) -> str:
    timed = [
        (line, line.predicted_forward_s + line.predicted_backward_s,
         line.measured_forward_s + line.measured_backward_s)
        for line in found.lines
        if line.source
    ]  # fmt: skip
    timed.sort(key=lambda each: -abs(each[1] - each[2]))
    rows = [
        (f"<code>{escape(f'{line.block} {line.place}'.strip())}</code>",
         f"<code>{escape(line.code)}</code>", escape(line.source), seconds(predicted),
         seconds(measured), _error(predicted, measured))
        for line, predicted, measured in timed[:MOST]
    ]  # fmt: skip
    return table(
        ("line", "", "times are", "predicted", "measured", "error"), rows, (3, 4, 5), is_wide=True
    )


def _error(predicted_s: float, measured_s: float) -> str:
    return f"{predicted_s / measured_s - 1:+.0%}" if measured_s else ""
