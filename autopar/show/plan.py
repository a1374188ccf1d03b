"""A plan as tables: what a step costs, how parameters rest and are used, what is communicated."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from autopar.plan import Plan
from autopar.show.fold import fold
from autopar.show.units import nbytes, seconds


def show_plan(plan: Plan) -> RenderableType:
    """The whole plan on one page; repeated blocks are folded."""
    return Group(header(plan), "", costs(plan), "", parameters(plan), "", communication(plan))


def header(plan: Plan) -> str:
    """Model, mesh, hardware and digest, one line."""
    chosen = f", preset {plan.preset}" if plan.preset else ""
    return (
        f"[bold]{plan.model}[/bold] on mesh ({plan.mesh}), hardware {plan.hardware}{chosen}, "
        f"{plan.optimizer}, precision {plan.precision}, plan {plan.digest}"
    )


def costs(plan: Plan) -> Table:
    """Predicted seconds of a step and bytes per rank, by kind."""
    e = plan.estimate
    table = Table(title="predicted step, per rank", title_justify="left", box=None, pad_edge=False)
    table.add_column("time")
    table.add_column("", justify="right")
    table.add_column("memory")
    table.add_column("", justify="right")
    times = [
        ("compute", e.compute_s),
        ("communication, exposed", e.exposed_s),
        ("communication, hidden", e.hidden_s),
        ("step", e.step_s),
    ]
    sizes = [
        ("parameters", e.parameter_nbytes),
        ("gradients", e.gradient_nbytes),
        ("optimizer", e.optimizer_nbytes),
        ("activations", e.activation_nbytes),
        ("working set", e.working_nbytes),
        ("peak", e.memory_nbytes),
    ]
    for i in range(max(len(times), len(sizes))):
        left = (times[i][0], seconds(times[i][1])) if i < len(times) else ("", "")
        right = (sizes[i][0], nbytes(sizes[i][1])) if i < len(sizes) else ("", "")
        table.add_row(*left, *right)
    return table


def parameters(plan: Plan) -> Table:
    """One row per pattern of equal parameters."""
    axes = ", ".join(plan.mesh.names)
    table = Table(title=f"parameters, types per axis ({axes})", title_justify="left", box=None)
    table.pad_edge = False
    table.add_column("name", overflow="fold")
    table.add_column("", justify="right")
    for column in ("shape", "stored", "in the step"):
        table.add_column(column, no_wrap=True)
    rows = (
        (p.name, ("x".join(map(str, p.shape)), str(p.stored), str(p.leaf))) for p in plan.parameters
    )
    for row in fold(rows):
        count = f"x{row.count}" if row.count > 1 else ""
        table.add_row(escape(row.name), count, *map(escape, row.value))
    return table


def communication(plan: Plan) -> Table:
    """Bytes and seconds per axis and kind of collective."""
    table = Table(title="communication per step, per rank", title_justify="left", box=None)
    table.pad_edge = False
    for column in ("axis", "collective", "when", "calls", "bytes", "time"):
        table.add_column(
            column, justify="right" if column in ("calls", "bytes", "time") else "left"
        )
    for flow in plan.estimate.flows:
        when = flow.direction if flow.scope == "microbatch" else _step_word(flow.direction)
        table.add_row(
            flow.axis, flow.collective, when, str(flow.calls), nbytes(flow.nbytes),
            seconds(flow.seconds),
        )  # fmt: skip
    if not plan.estimate.flows:
        table.add_row("none", "", "", "", "", "")
    return table


def _step_word(direction: str) -> str:
    return "gradients" if direction == "backward" else "parameters"
