"""One run of the list scheduler of `fit.py`, under one policy."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from autopar.errors import InternalError
from autopar.pipeline.schedules.action import Action, Kind
from autopar.pipeline.schedules.schedule import Schedule
from autopar.pipeline.simulate.program import Lane, ways
from autopar.pipeline.simulate.values import Costs, StageCost


@dataclass(frozen=True, slots=True)
class Policy:
    """How a worker chooses its next action.

    ahead            limit of microbatches in flight, as a multiple of the number that hides the path of
                     a microbatch to the last stage and back
    backward_first   a ready backward runs before a ready forward
    deep_first       of its stages, the last one has priority; otherwise the first one
    split            backwards are I and W, not B
    patience         a W is not started if something better arrives within this fraction of its seconds
    """

    ahead: float
    backward_first: bool
    deep_first: bool
    split: bool
    patience: float = 0.0


class Greedy:
    """The list scheduler.

    Stages run microbatches in order, so a count per stage and kind is enough to track progress.
    """

    def __init__(
        self,
        costs: Costs,
        placement: Sequence[int],
        microbatches: int,
        limits: Sequence[float],
        policy: Policy,
    ) -> None:
        self.costs, self.placement, self.policy = costs, placement, policy
        self.microbatches = microbatches
        count = len(costs.stages)
        self.held = [[s for s in range(count) if placement[s] == w] for w in range(len(limits))]
        if policy.deep_first:
            self.held = [held[::-1] for held in self.held]
        self.done: dict[Kind, list[int]] = {kind: [0] * count for kind in ("F", "B", "I", "W")}
        self.backward: Kind = "I" if policy.split else "B"
        self.caps = in_flight(costs, policy)
        self.room = [
            limit * (1 + 1e-9)
            - sum(costs.stages[stage].static for stage in held)
            - max(costs.stages[stage].working for stage in held)
            for limit, held in zip(limits, self.held, strict=True)
        ]
        self.lists: list[list[Action]] = [[] for _ in limits]
        self.free = [0.0] * len(limits)
        self._lay_lanes()

    def _lay_lanes(self) -> None:
        edges, on = self.costs.edges, self.placement
        # For each stage, pairs (edge, stage at its other end): those that wait for its forward, and
        # those that wait for its backward.
        self.after: list[list[tuple[int, int]]] = [[] for _ in on]
        self.before: list[list[tuple[int, int]]] = [[] for _ in on]
        self.into, self.back = [0] * len(on), [1] * len(on)
        for number, edge in enumerate(edges):
            self.after[edge.source].append((number, edge.target))
            self.into[edge.target] += 1
            if edge.gradient_nbytes is not None:
                self.before[edge.target].append((number, edge.source))
                self.back[edge.source] += 1
        lanes = []
        for number, edge in enumerate(edges):
            lanes.append(Lane(number, False, on[edge.source], on[edge.target]))
            lanes.append(Lane(number, True, on[edge.target], on[edge.source]))
        priced = ways(tuple(lanes), self.costs)
        self.way = {
            (lane.edge, lane.backward): way for lane, way in zip(lanes, priced, strict=True)
        }
        self.busy = [0.0] * len(self.costs.network.links)
        # (is backward, stage, microbatch) -> the number of inputs that have arrived, and the last time.
        self.there: dict[tuple[bool, int, int], tuple[int, float]] = {}

    def run(self) -> Schedule:
        """Return the schedule; workers choose an action when they become free or something arrives."""
        wake = [(0.0, worker) for worker in range(len(self.lists))]
        while wake:
            now, worker = heapq.heappop(wake)
            if now < self.free[worker]:
                continue
            action, again = self._choose(worker, now)
            if action is None:
                if again < math.inf:
                    heapq.heappush(wake, (again, worker))
                continue
            end = now + self._seconds(action)
            self.free[worker] = end
            heapq.heappush(wake, (end, worker))
            for other, arrival in self._do(worker, action, end):
                heapq.heappush(wake, (max(arrival, self.free[other]), other))
        if sum(self.done["F"]) + sum(self.done[self.backward]) < 2 * self.microbatches * len(
            self.into
        ):
            raise InternalError(f"The list scheduler got stuck under {self.policy}.")
        lists = tuple(map(tuple, self.lists))
        return Schedule("fitted", len(self.placement), self.microbatches, lists)

    def _seconds(self, action: Action) -> float:
        cost = self.costs.stages[action.stage]
        if action.kind == "F":
            return cost.forward
        if action.kind == "B":
            return cost.whole_backward
        return cost.input_gradient if action.kind == "I" else cost.weight_gradient

    def _choose(self, worker: int, now: float) -> tuple[Action | None, float]:
        """Return the action to start, or None and the second at which one may be ready."""
        soonest = math.inf
        found: dict[Kind, Action] = {}
        starved = False
        for stage in self.held[worker]:
            for kind in (self.backward, "F"):
                since = self._ready(kind, stage)
                if since <= now and kind not in found:
                    if kind == "F" and not self._fits(worker, stage):
                        starved = True
                        continue
                    found[kind] = Action(kind, stage, self.done[kind][stage])
                elif since > now and (kind != "F" or self._fits(worker, stage)):
                    soonest = min(soonest, since)
        order: tuple[Kind, Kind] = (self.backward, "F")
        for kind in order if self.policy.backward_first else order[::-1]:
            if kind in found:
                return found[kind], now
        for stage in self.held[worker]:
            if self.done["W"][stage] < self.done["I"][stage]:
                patience = self.policy.patience * self.costs.stages[stage].weight_gradient
                if starved or soonest - now >= patience:
                    return Action("W", stage, self.done["W"][stage]), now
        return None, soonest

    def _ready(self, kind: Kind, stage: int) -> float:
        """Return since when the next action of this kind is ready; infinite: not allowed or unknown."""
        number = self.done[kind][stage]
        if number == self.microbatches:
            return math.inf
        if kind == "F":
            if number - self.done[self.backward][stage] >= self.caps[stage]:
                return math.inf
            needed = self.into[stage]
        else:
            needed = self.back[stage]
        count, since = self.there.get((kind != "F", stage, number), (0, 0.0))
        return since if count == needed else math.inf

    def _fits(self, worker: int, stage: int) -> bool:
        """Return whether the worker can still finish its microbatches one by one after a forward.

        This is the banker's algorithm (Dijkstra 1965): each microbatch needs memory for its other
        forwards on this worker, and then releases all its memory.
        """
        kept = {s: self.costs.stages[s].kept for s in self.held[worker]}
        begun = {s: self.done["F"][s] + (s == stage) for s in kept}
        ended = {s: self.done[self.backward][s] for s in kept}
        room = self.room[worker] - kept[stage]
        for number in range(min(ended.values()), max(begun.values())):
            if room < sum(kept[s] for s in kept if begun[s] <= number):
                return False
            room += sum(kept[s] for s in kept if ended[s] <= number < begun[s])
        return True

    def _do(self, worker: int, action: Action, end: float) -> list[tuple[int, float]]:
        """Record an action and send its results; return pairs (worker, arrival)."""
        stage, microbatch = action.stage, action.microbatch
        self.lists[worker].append(action)
        self.done[action.kind][stage] += 1
        self.room[worker] += _released(self.costs.stages[stage], action.kind)
        if action.kind == "W":
            return []
        if action.kind == "F":
            self._arrive(True, stage, microbatch, end)
        woken = []
        backward = action.kind != "F"
        for number, other in (self.before if backward else self.after)[stage]:
            arrival = end
            if self.placement[other] != worker:
                way = self.way[number, backward]
                start = max([end, *(self.busy[link] for link in way.links)])
                for link in way.links:
                    self.busy[link] = start + way.occupied
                arrival = start + way.occupied + way.latency
            self._arrive(backward, other, microbatch, arrival)
            woken.append((self.placement[other], arrival))
        return woken

    def _arrive(self, backward: bool, stage: int, microbatch: int, when: float) -> None:
        count, since = self.there.get((backward, stage, microbatch), (0, 0.0))
        self.there[backward, stage, microbatch] = (count + 1, max(since, when))


def _released(cost: StageCost, kind: Kind) -> float:
    if kind == "F":
        return -cost.kept
    if kind == "B":
        return cost.kept
    return cost.kept - cost.kept_for_weights if kind == "I" else cost.kept_for_weights


def in_flight(costs: Costs, policy: Policy) -> list[float]:
    """Return how many microbatches each stage may keep: enough to hide the path to the end and back."""
    work = [
        c.forward + (c.input_gradient if policy.split else c.whole_backward) for c in costs.stages
    ]
    cycle = max(work) or 1.0
    below = [0.0] * len(work)
    for _ in work:
        for edge in costs.edges:
            through = below[edge.target] + work[edge.target]
            below[edge.source] = max(below[edge.source], through)
    return [
        1 + math.ceil(policy.ahead * time / cycle - 1e-9) if policy.ahead < math.inf else math.inf
        for time in below
    ]
