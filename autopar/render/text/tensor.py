"""Renders a plan's decisions on one tensor."""

from __future__ import annotations

from rich.table import Table

from autopar.ir.units import shape
from autopar.plans.focus import TensorFacts
from autopar.render.text.table import row


def show_tensor(found: TensorFacts) -> Table:
    """Return a table with one line per decision."""
    made = Table.grid(padding=(0, 2))
    facts = {
        found.kind: found.name,
        "mesh": found.mesh,
        "shape": "" if found.shape is None else shape(found.shape),
        "on one rank": "" if found.part is None else f"{shape(found.part)} at rest",
        "stored": found.stored,
        "made" if found.kind == "tensor" else "in the step": found.made,
        "once a step": "\n".join(found.once),
        "where used": "\n".join(found.changes),
        "padding": "\n".join(found.padding),
        "you asked": _asked(found.asked),
    }
    for name, fact in facts.items():
        if fact:
            row(made, name, fact)
    return made


def _asked(constraints: tuple[str, ...] | None) -> str:
    if constraints is None:
        return "pass the MODEL to see it"
    return "\n".join(constraints) or "nothing"
