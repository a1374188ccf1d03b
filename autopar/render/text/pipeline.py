"""Renders a pipeline's plan as text: its stages, its schedule, and the alternatives compared."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autopar.ir.graph import Graph
from autopar.ir.units import nbytes, seconds
from autopar.pipeline.schedules.kept import most_versions
from autopar.pipeline.schedules.lower import without_transfers
from autopar.plans.pipeline_data import StageFigures, WorkerPlan
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.render.text.fitted import Fitted
from autopar.render.text.pinned import asked, pinned
from autopar.render.text.proof import of_table
from autopar.render.text.schedules import equal_parts
from autopar.render.text.timeline import timeline


def show_pipeline(plan: PipelinePlan, graphs: Sequence[Graph] = ()) -> RenderableType:
    """Return the plan's summary; with the stages' graphs constrained operators are named, too."""
    parts = (*_contents(plan), *pinned(plan, graphs), *_compared(plan))
    wanted = (asked(plan), "") if plan.stages else ()
    return Group(*_lines(plan), "", *wanted, stages(plan), "", *parts)


def _lines(plan: PipelinePlan) -> Iterator[Text]:
    schedule = plan.schedule
    idle = dict.fromkeys(each.plan.idle for each in plan.stages if each.plan.idle)
    yield Text(
        f"{plan.model} on {plan.hardware or 'unknown hardware'}, mesh {plan.mesh}: "
        f"{schedule.stages} stages, {schedule.name}, {plan.microbatches} microbatches"
        + "".join(f"; in some stage {words}" for words in idle)
    )
    if schedule.asynchronous:
        kept = ", ".join(str(most_versions(actions)) for actions in schedule.workers)
        yield Text(
            "asynchronous: gradients belong to weights that lack some updates; versions of "
            f"weights kept by stage: {kept}"
        )
    if plan.sources:
        yield Text(f"operator times: {plan.sources}")
    found = plan.prediction
    if found is None:
        return
    bubble = sum(found.bubbles) / len(found.bubbles)
    yield Text(f"step {seconds(found.step_s)} predicted, bubble {bubble:.1%} on average")
    if found.bound_s is not None:
        yield Text(of_table(found.bound_s))


def stages(plan: PipelinePlan) -> Table:
    """Return a table with one line per stage and worker."""
    table = Fitted(box=None, pad_edge=False)
    for name, justify in (
        ("stage", "right"), ("ranks", "left"), ("mesh", "left"),
        ("forward", "right"), ("input grad", "right"), ("weight grad", "right"),
        ("once a step", "right"), ("memory", "right"), ("in flight", "right"),
    ):  # fmt: skip
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    found = plan.prediction
    figures = {(f.stage, f.worker): f for f in found.stages} if found else {}
    for each in plan.stages:
        worker = plan.workers[each.worker]
        cells = _cells(figures.get((each.stage, each.worker)))
        table.add_row(str(each.stage), _ranks(worker), str(worker.mesh), *cells)
    return table


def _cells(figures: StageFigures | None) -> tuple[str, ...]:
    if figures is None:
        return ("",) * 6
    times = (figures.forward_s, figures.input_grad_s, figures.weight_grad_s, figures.once_s)
    return (*map(seconds, times), nbytes(round(figures.nbytes)), str(figures.in_flight))


def _contents(plan: PipelinePlan) -> Iterator[Text]:
    """Yield a line per stage: the first and the last module whose parameters it reads."""
    first = {each.stage: each.plan for each in reversed(plan.stages)}
    for stage in sorted(first):
        names = [p.name.rpartition(".")[0] for p in first[stage].parameters]
        ends = list(dict.fromkeys((names[0], names[-1]))) if names else ["no parameters"]
        begins = f", beginning with the operator {plan.cuts[stage - 1]}" if stage else ""
        yield Text(f"stage {stage}: {' ... '.join(ends)}{begins}")


def _compared(plan: PipelinePlan) -> Iterator[RenderableType]:
    found = plan.prediction
    if found is None or not found.compared:
        return
    yield Text("\ncompared:")
    for other in found.compared:
        step = "does not fit" if other.step_s is None else seconds(other.step_s)
        yield Text(f"  {step:>12}  {other.what}")


def schedule_page(plan: PipelinePlan) -> str:
    """Return the schedule as Markdown: a timeline with a row per worker, then the action lists."""
    schedule = plan.schedule
    size = f"{schedule.stages} stages, {schedule.microbatches} microbatches"
    return f"""# {plan.model}: {schedule.name}, {size}

{_workers(plan)}
Time to the right. Here F, I and W take one slot each, B two, for all stages of a worker together;
real stages are not equal. `F3` is the forward of microbatch 3, B its backward, I and W the backward's
halves for inputs and for weights. A letter says which of the worker's stages, `·` is a wait.

```text
{timeline(equal_parts(without_transfers(schedule)))}```

What every worker does, in order:

{schedule_table(plan)}"""


def _workers(plan: PipelinePlan) -> str:
    lines = ["| worker | ranks | mesh | stages |", "| --- | --- | --- | --- |"]
    for worker, held in zip(plan.workers, plan.schedule.held, strict=True):
        stages = ", ".join(map(str, held))
        lines.append(f"| {len(lines) - 2} | {_ranks(worker)} | {worker.mesh} | {stages} |")
    return "\n".join(lines) + "\n"


def schedule_table(plan: PipelinePlan) -> str:
    """Return every worker's actions in order as a Markdown table, one column per worker."""
    lists = [[str(action) for action in actions] for actions in plan.schedule.workers]
    heads = [f"worker {number}" for number in range(len(lists))]
    rows = itertools.zip_longest(*lists, fillvalue="")
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _ranks(worker: WorkerPlan) -> str:
    """Return ``2``, or ``0-3``; ranks are consecutive in plans made by autopar."""
    first, last = worker.ranks[0], worker.ranks[-1]
    if worker.ranks == tuple(range(first, last + 1)):
        return str(first) if first == last else f"{first}-{last}"
    return ", ".join(map(str, worker.ranks))
