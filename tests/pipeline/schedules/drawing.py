"""Random schedules, valid by construction: each worker's part of one random order of all actions."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from autopar.pipeline.schedules import Action, Edge, Schedule


@st.composite
def schedules(draw: st.DrawFn, replicas: bool = True) -> tuple[Schedule, tuple[Edge, ...]]:
    """Any DAG of stages, any placement, backwards whole or split."""
    stages, workers = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    microbatches = draw(st.integers(1, 4))
    random = draw(st.randoms(use_true_random=False))
    edges = tuple(
        Edge(a, b, random.random() < 0.8)
        for b in range(stages)
        for a in range(b)
        if random.random() < 0.5
    )
    home = [random.randrange(workers) for _ in range(stages)]
    on = {
        (stage, m): random.randrange(workers) if replicas and random.random() < 0.2 else home[stage]
        for stage in range(stages)
        for m in range(microbatches)
    }
    lists: list[list[Action]] = [[] for _ in range(workers)]
    for action in shuffled(stages, microbatches, edges, random):
        lists[on[action.stage, action.microbatch]].append(action)
    return Schedule("random", stages, microbatches, tuple(map(tuple, lists))), edges


def shuffled(
    stages: int, microbatches: int, edges: tuple[Edge, ...], random: Random
) -> list[Action]:
    """All actions, each after what it needs."""
    after: dict[Action, set[Action]] = {}
    for m in range(microbatches):
        last: dict[int, Action] = {}
        for stage in reversed(range(stages)):
            forward = Action("F", stage, m)
            split = random.random() < 0.5
            last[stage] = Action("I" if split else "B", stage, m)
            after[forward] = {Action("F", e.source, m) for e in edges if e.target == stage}
            after[last[stage]] = {forward}
            after[last[stage]] |= {
                last[e.target] for e in edges if e.source == stage and e.gradient
            }
            if split:
                after[Action("W", stage, m)] = {last[stage]}
    order: list[Action] = []
    while after:
        ready = [action for action, needs in after.items() if needs <= set(order)]
        order.append(random.choice(ready))
        del after[order[-1]]
    return order
