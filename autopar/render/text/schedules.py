"""Draws and compares the named pipeline schedules, for the generated part of docs/schedules.md."""

from __future__ import annotations

from collections.abc import Iterable

from autopar.pipeline.schedules import SCHEDULES, Schedule, build
from autopar.pipeline.schedules.kept import most_kept
from autopar.pipeline.simulate import Costs, Simulated, StageCost, simulate
from autopar.render.text.timeline import timeline

WORKERS, MICROBATCHES = 4, 8
BEGIN, END = "<!-- written by make golden -->", "<!-- until here -->"


def equal_parts(schedule: Schedule) -> Simulated:
    """Simulate with F, I and W of one second each per worker and microbatch, over all its stages."""
    part = len(schedule.workers) / schedule.stages
    cost = StageCost(part, part, part, version=1.0)
    return simulate(schedule, Costs((cost,) * schedule.stages))


def compared(workers: int = WORKERS, microbatches: int = MICROBATCHES) -> str:
    """Return a table of all schedules in Markdown."""
    lines = [
        "| schedule | stages | step | bubble | without barrier | kept until W | until I | versions |",
        "| --- | ---: | ---: | ---: | ---: | --- | --- | --- |",
    ]
    for name in SCHEDULES:
        schedule = build(name, workers, microbatches)
        lines.append(f"| {name} | {schedule.stages} | {' | '.join(_figures(schedule))} |")
    return "\n".join(lines) + "\n"


def _figures(schedule: Schedule) -> tuple[str, ...]:
    simulated = equal_parts(schedule)
    part = len(schedule.workers) / schedule.stages
    work = 3 * schedule.microbatches
    return (
        f"{simulated.step:.4g}",
        f"{1 - work / simulated.step:.1%}",
        f"{1 - work / simulated.longest_span:.1%}",
        _numbers(part * kept for kept in most_kept(schedule)),
        _numbers(part * kept for kept in most_kept(schedule, for_weights=0.0)),
        _numbers(1 + peak for peak in simulated.peaks) if schedule.asynchronous else "1",
    )


def _numbers(values: Iterable[float]) -> str:
    """Return the figures of all workers, or one figure if they are equal."""
    texts = [f"{value:.4g}" for value in values]
    return texts[0] if len(set(texts)) == 1 else ", ".join(texts)


def drawn(name: str, workers: int = WORKERS, microbatches: int = MICROBATCHES) -> str:
    """Return a drawing of one schedule."""
    return timeline(equal_parts(build(name, workers, microbatches)))


def page() -> str:
    """Return the generated part of the page: the table and all drawings."""
    parts = [BEGIN + "\n", compared()]
    for name in SCHEDULES:
        text = drawn(name, microbatches=2 if name == "naive" else MICROBATCHES)
        parts.append(f"### {name}\n\n```text\n{text}```\n")
    return "\n".join(parts) + "\n" + END + "\n"
