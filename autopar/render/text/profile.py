"""Renders measured times by operator: their spread, and the errors of the roofline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median

from rich.table import Table

from autopar.ir.graph import bare
from autopar.ir.units import seconds
from autopar.render.text.table import row, table
from cost_models.measured import Timed, Work

Model = Callable[[Work], float]


def timings(every: Iterable[Timed], model: Model) -> Table:
    """Return a table with one line per operator; `model` returns the roofline's seconds."""
    columns = ("calls", "forward", "backward", "spread", "roofline off by", "at worst")
    made = table("measured operators", "operator", *columns, right=columns)
    by_op: defaultdict[str, list[Timed]] = defaultdict(list)
    for timed in every:
        by_op[bare(timed.call.op)].append(timed)
    for op, group in sorted(by_op.items(), key=lambda item: -sum(map(_seconds, item[1]))):
        _line(made, op, group, model)
    if by_op:
        _line(made, "all", [timed for group in by_op.values() for timed in group], model)
    return made


def _line(made: Table, op: str, group: Sequence[Timed], model: Model) -> None:
    errors = [error for timed in group for error in _errors(timed, model)]
    spreads = [p.spread for t in group for p in (t.forward, t.backward) if p is not None]
    row(made, op, str(len(group)),
        seconds(sum(t.forward.seconds for t in group)),
        seconds(sum(t.backward.seconds for t in group if t.backward is not None)),
        f"{median(spreads):.0%}", f"{median(errors):.0%}", f"{max(errors):.0%}")  # fmt: skip


def _seconds(timed: Timed) -> float:
    return timed.forward.seconds + (0.0 if timed.backward is None else timed.backward.seconds)


def _errors(timed: Timed, model: Model) -> Iterator[float]:
    """Yield the roofline's relative error for each pass."""
    yield abs(model(timed.call.forward) / timed.forward.seconds - 1)
    if timed.backward is not None and timed.call.backward is not None:
        yield abs(model(timed.call.backward) / timed.backward.seconds - 1)
