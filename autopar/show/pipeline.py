"""A pipeline's plan on a page: its stages, its schedule, and what else was compared."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autopar.pipeline_plan import PipelinePlan, StageFigures, WorkerPlan
from autopar.schedules.kept import most_versions
from autopar.show.units import nbytes, seconds


def show_pipeline(plan: PipelinePlan) -> RenderableType:
    """The plan in short."""
    return Group(*_lines(plan), "", stages(plan), "", *_contents(plan), *_compared(plan))


def _lines(plan: PipelinePlan) -> Iterator[Text]:
    schedule = plan.schedule
    yield Text(
        f"{plan.model} on {plan.hardware or 'unknown hardware'}, mesh {plan.mesh}: "
        f"{schedule.stages} stages, {schedule.name}, {plan.microbatches} microbatches"
    )
    if schedule.asynchronous:
        kept = ", ".join(str(most_versions(actions)) for actions in schedule.workers)
        yield Text(
            "updates do not wait: gradients are those of weights that lack some of them; versions of "
            f"weights kept by stage: {kept}"
        )
    found = plan.prediction
    if found is None:
        return
    bubble = sum(found.bubbles) / len(found.bubbles)
    yield Text(f"step {seconds(found.step_s)} predicted, bubble {bubble:.1%} on average")
    if found.bound_s is not None:
        yield Text(
            f"no plan of the planner's table takes less than {seconds(found.bound_s)} (relaxation)"
        )


def stages(plan: PipelinePlan) -> Table:
    """A line per stage and worker."""
    table = Table(box=None, pad_edge=False)
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


def _ranks(worker: WorkerPlan) -> str:
    first, last = worker.ranks[0], worker.ranks[-1]
    return str(first) if first == last else f"{first}-{last}"


def _contents(plan: PipelinePlan) -> Iterator[Text]:
    """A line per stage: from the first to the last module whose parameters it reads."""
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


def schedule_table(plan: PipelinePlan) -> str:
    """What every worker does, in order: Markdown, one column per worker."""
    lists = [[str(action) for action in actions] for actions in plan.schedule.workers]
    longest = max(map(len, lists))
    heads = [f"worker {i} (ranks {w.ranks[0]}-{w.ranks[-1]})" for i, w in enumerate(plan.workers)]
    rows = [
        [actions[row] if row < len(actions) else "" for actions in lists] for row in range(longest)
    ]
    body = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    rule = "| " + " | ".join("---" for _ in heads) + " |"
    return f"| {' | '.join(heads)} |\n{rule}\n{body}\n"
