"""Chimera: two pipelines in opposite directions; the forwards of each fill the bubbles of the other.

Li and Hoefler, arXiv:2107.06925, section 3.1.  Worker w holds stage w of the pipeline down and stage
workers - 1 - w of the pipeline up.  So every stage has two copies, and their gradients are summed.

With D workers, a unit has D microbatches, of which half go down and half go up.  If forwards and
backwards take one slot each, microbatch i of a unit has at stage s the slots

    F   s + 2 (i // 2)        B   2 D - 1 - s + 2 (i // 2)

The slots of the two directions never coincide on one worker.  Units follow each other every 2 D slots
("direct concatenation").  The lists are the actions sorted by slot.
"""

from __future__ import annotations

from autopar.errors import ScheduleError
from autopar.pipeline.schedules.action import Action, backward, forward
from autopar.pipeline.schedules.schedule import Schedule, schedule_of


def chimera(workers: int, microbatches: int) -> Schedule:
    """Return the schedule; even microbatches go down, odd ones up."""
    if workers % 2:
        raise ScheduleError(
            f"chimera runs two pipelines against each other, which needs an even number of workers, "
            f"not {workers}."
        )
    slots: list[dict[int, Action]] = [{} for _ in range(workers)]
    for microbatch in range(microbatches):
        unit, number = divmod(microbatch, workers)
        first = 2 * workers * unit + 2 * (number // 2)
        for stage in range(workers):
            worker = stage if number % 2 == 0 else workers - 1 - stage
            slots[worker][first + stage] = forward(stage, microbatch)
            slots[worker][first + 2 * workers - 1 - stage] = backward(stage, microbatch)
    lists = ([actions for _, actions in sorted(row.items())] for row in slots)
    return schedule_of("chimera", workers, microbatches, lists)
