"""Random costs: unequal stages, and networks of several kinds."""

from __future__ import annotations

from random import Random

from autopar.pipeline.schedules import Edge
from autopar.pipeline.simulate import Costs, Link, Network, StageCost, Traffic, own_links


def random_costs(
    random: Random, stages: int, workers: int, edges: tuple[Edge, ...], contention: bool = True
) -> Costs:
    """All kinds of seconds and bytes, some of them zero."""

    def some(most: float) -> float:
        return random.choice((0.0, random.uniform(0, most)))

    costs = []
    for _ in range(stages):
        kept = random.uniform(0, 10)
        costs.append(
            StageCost(
                random.uniform(0.1, 2), random.uniform(0.1, 2), random.uniform(0, 2),
                backward=random.choice((None, random.uniform(0.1, 4))),
                kept=kept, kept_for_weights=random.uniform(0, kept),
                working=some(5), static=some(20), reduction=some(3), update=some(1),
            )
        )  # fmt: skip
    traffic = tuple(
        Traffic(e.source, e.target, some(4), some(4) if e.gradient else None) for e in edges
    )
    return Costs(tuple(costs), traffic, random_network(random, workers, contention))


def random_network(random: Random, workers: int, contention: bool) -> Network:
    """Nothing at all, links of their own, or a few links that all share and some take two of."""
    link = Link(random.uniform(0, 0.5), random.uniform(1, 10))
    kind = random.choice(("none", "own", "shared") if contention else ("none", "own"))
    if kind == "none":
        return Network()
    if kind == "own":
        return own_links(workers, link)
    links = tuple(Link(random.uniform(0, 0.5), random.uniform(1, 10)) for _ in range(3))
    routes = {
        (a, b): tuple(random.sample(range(3), random.randint(0, 2)))
        for a in range(workers)
        for b in range(workers)
        if a != b
    }
    return Network(links, routes)
