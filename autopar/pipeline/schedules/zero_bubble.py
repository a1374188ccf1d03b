"""ZB-H1 and ZB-H2: 1F1B with split backwards, so that weight gradients fill the bubbles.

Qi et al., arXiv:2401.10241, section 2.  Both follow one rule: a worker runs ahead by some forwards,
and its weight gradients trail its input gradients by some microbatches.

        forwards ahead            weight gradients behind    kept from F to W
ZB-H1   workers - stage           stage                      workers: as many as 1F1B's first worker
ZB-H2   2 (workers - stage) - 1   2 stage                    2 workers - 1
"""

from __future__ import annotations

from autopar.pipeline.schedules.action import Action, forward, input_gradient, weight_gradient
from autopar.pipeline.schedules.schedule import Schedule, schedule_of


def zb_h1(workers: int, microbatches: int) -> Schedule:
    """Return ZB-H1: a third of 1F1B's bubble if F, I and W take equally long, in no more memory."""
    lists = (
        _actions(stage, microbatches, ahead=workers - stage, behind=stage)
        for stage in range(workers)
    )
    return schedule_of("zb-h1", workers, microbatches, lists)


def zb_h2(workers: int, microbatches: int) -> Schedule:
    """Return ZB-H2: no bubble if F, I and W take equally long and updates need no barrier.

    It needs twice the memory of 1F1B.
    """
    lists = (
        _actions(stage, microbatches, ahead=2 * (workers - stage) - 1, behind=2 * stage)
        for stage in range(workers)
    )
    return schedule_of("zb-h2", workers, microbatches, lists)


def _actions(stage: int, microbatches: int, ahead: int, behind: int) -> list[Action]:
    actions = [forward(stage, m) for m in range(min(ahead, microbatches))]
    for microbatch in range(microbatches):
        actions.append(input_gradient(stage, microbatch))
        if microbatch >= behind:
            actions.append(weight_gradient(stage, microbatch - behind))
        if microbatch + ahead < microbatches:
            actions.append(forward(stage, microbatch + ahead))
    left = range(max(microbatches - behind, 0), microbatches)
    return actions + [weight_gradient(stage, m) for m in left]
