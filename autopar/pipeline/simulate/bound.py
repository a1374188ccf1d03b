"""Lower bound on the step of every schedule with given costs and placement, in any order of actions.

The relaxation keeps one resource at a time and gives all others unlimited capacity.

    head(s)   the longest path to stage s: forwards and transfers of one microbatch through the stages
              that feed it
    tail(s)   the longest path from the end of the input gradient of s to the end of the step: input
              gradients and transfers through the stages that feed it, then the weight gradient,
              reduction and update of the last stage on this path

A worker is idle before the least head of its stages.  After that it has all its work to do.  Its last
action is a weight gradient, followed by a reduction and all its updates.  After its last input
gradient there is at least the least tail.  Likewise, a link has all its transfers to do between the
least head and the least tail.  A single microbatch takes head + forward + backward + tail.

A stage that several workers hold counts only for their average, not for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from autopar.pipeline.simulate.program import Lane, TransferCost, ways
from autopar.pipeline.simulate.values import Costs, StageCost

Holders = Sequence[Sequence[int]]
"""For each stage, the workers that may run it."""


def lower_bound(costs: Costs, holders: Holders, microbatches: int, split: bool = True) -> float:
    """Return the bound in seconds.  `split`: schedules may divide backwards into I and W."""
    return max(_Relaxed(costs, holders, microbatches, split).bounds())


class _Relaxed:
    """Longest paths through the stages, and bounds per stage, worker, group of workers and link."""

    def __init__(self, costs: Costs, holders: Holders, microbatches: int, split: bool) -> None:
        self.costs, self.holders, self.microbatches, self.split = (
            costs,
            holders,
            microbatches,
            split,
        )
        self.stages = range(len(costs.stages))
        self.workers = sorted({worker for row in holders for worker in row})
        self.held = {w: [s for s in self.stages if w in holders[s]] for w in self.workers}

    def bounds(self) -> Iterator[float]:
        """Yield all bounds."""
        for stage in self.stages:
            cost = self.costs.stages[stage]
            yield self.head[stage] + cost.forward + self.first(cost) + self.tail[stage]
        for held in self.held.values():
            yield from self.of_worker(held)
        for group in {tuple(row) for row in self.holders if len(row) > 1}:
            yield from self.of_group(group)
        yield from self.of_links()

    def first(self, cost: StageCost) -> float:
        """Return the least seconds of a backward until the input gradient is available."""
        return min(cost.input_gradient, cost.whole_backward) if self.split else cost.whole_backward

    def whole(self, cost: StageCost) -> float:
        """Return the least seconds of a whole backward."""
        halves = cost.input_gradient + cost.weight_gradient
        return min(halves, cost.whole_backward) if self.split else cost.whole_backward

    def of_worker(self, held: list[int]) -> Iterator[float]:
        """Yield bounds of a worker: from the least head to its own end, and through the least tail."""
        head = min(self.head[stage] for stage in held)
        alone = [self.costs.stages[s] for s in held if len(self.holders[s]) == 1]
        forward = sum(cost.forward for cost in alone)
        first = sum(self.first(cost) for cost in alone)
        whole = sum(self.whole(cost) for cost in alone)
        updates = sum(self.costs.stages[stage].update for stage in held)
        reduction = min(self.costs.stages[stage].reduction for stage in held)
        yield head + self.microbatches * (forward + whole) + updates + reduction
        yield head + self.microbatches * (forward + first) + min(self.tail[stage] for stage in held)

    def of_group(self, group: tuple[int, ...]) -> Iterator[float]:
        """Yield the bounds for the average of workers that share stages.

        They also hold if one of them gets no work, since it is then idle for as long.
        """
        heads = sum(min(self.head[stage] for stage in self.held[worker]) for worker in group)
        tails = sum(min(self.tail[stage] for stage in self.held[worker]) for worker in group)
        inside = [self.costs.stages[s] for s in self.stages if set(self.holders[s]) <= set(group)]
        forward = sum(cost.forward for cost in inside)
        first = sum(self.first(cost) for cost in inside)
        whole = sum(self.whole(cost) for cost in inside)
        yield (heads + self.microbatches * (forward + whole)) / len(group)
        yield (heads + self.microbatches * (forward + first) + tails) / len(group)

    def of_links(self) -> Iterator[float]:
        """Yield the bound of each link: all its transfers, between the least head and the least tail."""
        on: dict[int, list[tuple[float, float, float]]] = {}
        for lane, way in self.lanes:
            edge = self.costs.edges[lane.edge]
            source, target = self.costs.stages[edge.source], self.costs.stages[edge.target]
            if lane.backward:
                before = self.head[edge.target] + target.forward + self.first(target)
                behind = self.first(source) + self.tail[edge.source]
            else:
                before = self.head[edge.source] + source.forward
                behind = target.forward + self.first(target) + self.tail[edge.target]
            for link in way.links:
                on.setdefault(link, []).append((before, way.occupied, way.latency + behind))
        for carried in on.values():
            busy = self.microbatches * sum(occupied for _, occupied, _ in carried)
            yield min(before for before, _, _ in carried) + busy + min(last for *_, last in carried)

    @cached_property
    def lanes(self) -> list[tuple[Lane, TransferCost]]:
        """Transfers that any schedule needs: between stages that have one worker each, not the same."""
        lanes = [
            Lane(number, backward, *(pair if not backward else pair[::-1]))
            for number, edge in enumerate(self.costs.edges)
            for pair in [(*self.holders[edge.source], *self.holders[edge.target])]
            if len(self.holders[edge.source]) == len(self.holders[edge.target]) == 1
            and pair[0] != pair[1]
            for backward in ((False, True) if edge.gradient_nbytes is not None else (False,))
        ]
        return list(zip(lanes, ways(tuple(lanes), self.costs), strict=True))

    @cached_property
    def travel(self) -> dict[tuple[int, bool], float]:
        """(edge, backward) -> seconds of one transfer; missing if it may not be needed."""
        return {(ln.edge, ln.backward): way.occupied + way.latency for ln, way in self.lanes}

    @cached_property
    def head(self) -> list[float]:
        """head(s) of every stage, as in the module's docstring."""
        head = [0.0] * len(self.stages)
        for _ in self.stages:
            for number, edge in enumerate(self.costs.edges):
                through = head[edge.source] + self.costs.stages[edge.source].forward
                through += self.travel.get((number, False), 0.0)
                head[edge.target] = max(head[edge.target], through)
        return head

    @cached_property
    def tail(self) -> list[float]:
        """tail(s) of every stage, as in the module's docstring."""
        tail = [
            self.whole(cost) - self.first(cost) + cost.reduction + cost.update
            for cost in self.costs.stages
        ]
        for _ in self.stages:
            for number, edge in enumerate(self.costs.edges):
                if edge.gradient_nbytes is not None:
                    through = self.first(self.costs.stages[edge.source]) + tail[edge.source]
                    through += self.travel.get((number, True), 0.0)
                    tail[edge.target] = max(tail[edge.target], through)
        return tail
