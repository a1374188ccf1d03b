"""Renders a priced configuration, beside what autopar would choose."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autopar.ir.units import nbytes, seconds
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.price import Choice, Priced, StepFigures
from autopar.render.text.table import row, table
from autopar.request.configurations.configuration import Configuration

OURS, THEIRS = "autopar's choice", "configuration"
EQUAL = 1e-9


def show_priced(
    found: Priced, choice: Choice | None = None, said: Sequence[str] | None = None
) -> RenderableType:
    """Return one table of the configuration and the choice, and what there is to say of both.

    `said` stands in for the configuration's own sentences.
    """
    plan, c = found.plan, found.configuration
    head = (
        f"{plan.model} on {c.devices} devices of {plan.hardware}, {c.batch} samples in {c.accumulation} "
        f"{'microbatch' if c.accumulation == 1 else 'microbatches'}"
    )
    lines = [Text(f"{THEIRS}: {spelled(c)}")]
    if choice is not None and choice.plan is not None:
        lines.append(Text(f"{OURS}: {described(choice.plan)}"))
    return Group(
        Text(head), "", _table(found.figures, None if choice is None else choice.figures), "",
        *lines, *map(Text, _remarks(found, choice, found.said if said is None else said)),
    )  # fmt: skip


def _table(theirs: StepFigures, ours: StepFigures | None) -> Table:
    columns = ("step", "memory", "bubble", "MFU", "tokens/s", "samples/s")
    made = table("predicted", "", *columns, right=columns)
    for name, figures in ((THEIRS, theirs), (OURS, ours)):
        if figures is not None:
            row(made, name, *_cells(figures))
    return made


def _cells(of: StepFigures) -> tuple[str, ...]:
    tokens = "" if of.tokens_per_s is None else f"{of.tokens_per_s:,.0f}"
    return (
        seconds(of.step_s), nbytes(of.peak_nbytes), f"{of.bubble:.1%}", f"{of.mfu:.1%}", tokens,
        f"{of.samples_per_s:,.1f}",
    )  # fmt: skip


def spelled(c: Configuration) -> str:
    """Return a settled configuration in the words of its flags."""
    parts = [f"tp {c.tp}", f"pp {c.pp}", f"dp {c.dp}", *([f"cp {c.cp}"] if c.cp > 1 else [])]
    parts += [f"in {c.replicas} groups"] if c.replicas > 1 else []
    if c.pp > 1:
        parts += [f"{c.virtual} stages a rank"] if (c.virtual or 1) > 1 else []
        parts.append(str(c.schedule))
    parts += [f"ZeRO-{c.zero}"] if c.zero else []
    parts += ["sequence parallel"] if c.sequence_parallel else []
    parts += [f"recompute {c.recompute}"] if c.recompute != "none" else []
    parts += [str(c.precision)] if c.precision else []
    return f"{', '.join(parts)}, microbatches of {c.microbatch} on each rank"


def described(plan: Plan | PipelinePlan) -> str:
    """Return a plan's devices, stages and microbatches."""
    if isinstance(plan, Plan):
        return f"no stages, mesh {plan.mesh}"
    meshes = dict.fromkeys(str(worker.mesh) for worker in plan.workers)
    stages = plan.schedule.stages
    if stages == 1:
        return f"no stages, mesh {next(iter(meshes))}, {plan.microbatches} microbatches"
    return (
        f"{stages} stages on {len(plan.workers)} meshes ({'; '.join(meshes)}), {plan.schedule.name}, "
        f"{plan.microbatches} microbatches"
    )


def _remarks(found: Priced, choice: Choice | None, sentences: Sequence[str]) -> list[str]:
    """Return what differs, what does not fit, and how the two compare."""
    said = list(sentences)
    if not found.fits:
        said.append(
            f"The configuration does not fit: it needs {nbytes(found.figures.peak_nbytes)}, a device "
            f"has {nbytes(found.memory_nbytes)}."
        )
    if choice is None:
        return said
    if choice.figures is None:
        return [*said, f"autopar finds nothing that fits: {choice.why}"]
    ratio = found.figures.step_s / choice.figures.step_s
    if abs(ratio - 1.0) <= EQUAL:
        return [*said, "autopar's choice is as fast."]
    times = f"{max(ratio, 1.0 / ratio):.3g} times as {'fast' if ratio > 1.0 else 'slow'}"
    return [*said, f"autopar's choice is {times}."]
