"""The schedules that have names, drawn and compared: the generated part of docs/schedules.md.

``python -m autopar.show.schedules`` prints it.
"""

from __future__ import annotations

from collections.abc import Iterator

from autopar.schedules import SCHEDULES, Schedule, build
from autopar.schedules.kept import most_kept
from autopar.show.timeline import timeline
from autopar.simulate import Costs, Simulated, StageCost, simulate

WORKERS, MICROBATCHES = 4, 8


def unit_costs(schedule: Schedule) -> Costs:
    """A worker's F, I and W take three seconds together per microbatch, whatever the schedule."""
    stages = max(map(len, schedule.held)) if schedule.name != "chimera" else 1
    return Costs((StageCost(1 / stages, 1 / stages, 1 / stages),) * schedule.stages)


def compared(workers: int = WORKERS, microbatches: int = MICROBATCHES) -> str:
    """A table in Markdown."""
    lines = [
        "| schedule | stages | step | bubble | kept by workers | until I |",
        "| --- | ---: | ---: | ---: | --- | --- |",
    ]
    for name in SCHEDULES:
        schedule = build(name, workers, microbatches)
        simulated = simulate(schedule, unit_costs(schedule))
        lines.append(f"| {name} | {schedule.stages} | {' | '.join(_figures(simulated))} |")
    return "\n".join(lines) + "\n"


def _figures(simulated: Simulated) -> Iterator[str]:
    schedule = simulated.schedule
    share = len(schedule.workers) / schedule.stages
    yield f"{simulated.step:.4g}"
    yield f"{sum(simulated.bubble_rates) / len(schedule.workers):.1%}"
    for for_weights in (1.0, 0.0):
        kept = (share * each for each in most_kept(schedule, for_weights))
        yield ", ".join(f"{count:.4g}" for count in kept)


def drawn(name: str, workers: int = WORKERS, microbatches: int = MICROBATCHES) -> str:
    """One schedule as text."""
    schedule = build(name, workers, microbatches)
    return timeline(simulate(schedule, unit_costs(schedule)))


def page() -> str:
    """The table and all drawings."""
    parts = [compared()]
    parts += [f"### {name}\n\n```text\n{drawn(name)}```\n" for name in SCHEDULES]
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
