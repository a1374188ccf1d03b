"""Replays a plan without stages: one step of all ranks together.

All ranks do the same work and wait for each other at every collective, so one slow rank slows all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from autopar.errors import PlanError
from autopar.explain.replay.conditions import Conditions
from autopar.explain.replay.flows import Flows, checked
from autopar.explain.replay.played import Played, Row, Span
from autopar.plans.estimate import Estimate, Flow, Parts
from autopar.plans.plan import Plan
from cost_models.hardware import Hardware

AHEAD = ("all_gather", "reduce_scatter")
"""What a loop that gathers ahead runs beside compute, of weights and of their gradients."""
MOST_SLICES = 32
"""Maximum number of slices in which forward and backward are drawn: one per block, if not more."""


def play_whole(plan: Plan, conditions: Conditions, hardware: Hardware | None) -> Played:
    """Return the replayed step."""
    conditions.check(plan.mesh.names, plan.mesh.world_size)
    if conditions.microbatches not in (None, 1):
        raise PlanError(
            "This plan runs the batch in one piece, and its file has no costs of microbatches: "
            f"plan again with --stages auto --microbatches {conditions.microbatches}."
        )
    parts = plan.estimate.parts
    if parts is None:
        raise PlanError(
            "This plan file does not record the times of forward and backward, because an older "
            "autopar wrote it: make it again with `autopar plan`."
        )
    profile = checked(hardware, plan.hardware, plan.hardware_digest, conditions)
    flows = Flows(plan.mesh, conditions, profile)
    slow = conditions.slowest(range(plan.mesh.world_size))
    slices = min(MOST_SLICES, blocks_of(plan))
    rows = []
    for name, ranks, pace in _groups(plan, conditions):
        step = _Step(plan.estimate, parts, flows, slow, pace, slices)
        spans = tuple(step.spans())
        busy = sum(s.end - s.start for s in spans if s.lane == "compute")
        rows.append(Row(name, ranks, spans, tuple(step.memory), busy))
    step_s = max(span.end for row in rows for span in row.spans)
    notes = ["Within forward and backward, durations are known, start times are not."]
    if plan.estimate.operators:
        notes.append(
            "Memory is shown operator by operator, including variables that live until their "
            "block returns. The plan's own figure is its peak."
        )
    if plan.times is not None:
        notes.append(f"operators: {plan.sources}")
    limit = plan.asked.memory_limit
    return Played(
        plan.model,
        str(conditions),
        step_s,
        plan.estimate.step_s,
        tuple(rows),
        limit,
        notes=tuple(notes),
    )


def blocks_of(plan: Plan) -> int:
    """Return the number of repetitions of the most frequent block, by parameter names."""
    numbers: dict[str, set[str]] = {}
    for parameter in plan.parameters:
        if match := re.match(r"(.*?)\b(\d+)\b", parameter.name):
            numbers.setdefault(match[1], set()).add(match[2])
    return max((len(found) for found in numbers.values()), default=1)


def _groups(plan: Plan, conditions: Conditions) -> Iterator[tuple[str, tuple[int, ...], float]]:
    """Yield (name, ranks, pace) for each group of ranks of equal pace, in ascending order of pace."""
    by_pace: dict[float, list[int]] = {}
    for rank in range(plan.mesh.world_size):
        by_pace.setdefault(conditions.stragglers.get(rank, 1.0), []).append(rank)
    for pace, ranks in sorted(by_pace.items()):
        first = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}"
        whole = len(ranks) == ranks[-1] - ranks[0] + 1
        yield first if whole else f"{len(ranks)} other ranks", tuple(ranks), pace


def _by_axis(flows: Iterable[Flow], seconds: Callable[[Flow], float]) -> dict[str, float]:
    summed: dict[str, float] = {}
    for flow in flows:
        summed[flow.axis] = summed.get(flow.axis, 0.0) + seconds(flow)
    return summed


@dataclass
class _Step:
    """Generates the spans of a rank with straggler factor `pace`, if the slowest rank's is `slow`."""

    estimate: Estimate
    parts: Parts
    flows: Flows
    slow: float
    pace: float
    slices: int
    now: float = 0.0

    def spans(self) -> Iterator[Span]:
        """Yield the spans from the first gathers to the update, and record `memory` meanwhile."""
        e, parts = self.estimate, self.parts
        rest = e.parameter_nbytes + e.gradient_nbytes + e.optimizer_nbytes
        kept = e.in_flight * e.activation_nbytes / self.slices
        self.memory: list[tuple[float, float]] = [(0.0, float(rest))]
        once = [flow for flow in e.flows if flow.scope == "step"]
        each = [flow for flow in e.flows if flow.scope == "microbatch"]
        yield from self._sent(f for f in once if f.direction == "forward")
        begun = self.now
        forward = [f for f in each if f.direction == "forward"]
        ahead = self._ahead(forward)
        forward = list(self._but_ahead(forward, ahead))
        for number in range(self.slices):
            self._evenly(rest + (number + 1) * kept + e.working_nbytes)
            yield from self._beside(weights_of_blocks=sum(ahead.values()))
            yield from self._computed("forward", parts.forward_s / self.slices)
            yield from self._part(forward, number)
        self._moments(begun, [(op.forward_s, op.forward_nbytes) for op in e.operators], rest)
        reduced = [f for f in once if f.direction == "backward"]
        beside = self._hidden(reduced)
        backward = [f for f in each if f.direction == "backward"]
        ahead = self._ahead(backward)
        backward = list(self._but_ahead(backward, ahead))
        back = self.now
        for number in reversed(range(self.slices)):
            self._evenly(rest + (number + 1) * kept + e.working_nbytes)
            yield from self._beside(
                weights_of_blocks=sum(ahead.values()), reduce_gradients=sum(beside.values())
            )
            yield from self._computed("backward", parts.backward_s / self.slices)
            yield from self._part(backward, number)
        in_turn = reversed(e.operators)
        self._moments(back, [(op.backward_s, op.backward_nbytes) for op in in_turn], rest)
        self.memory.append((self.now, float(rest)))
        yield from self._sent(self._exposed(reduced, beside))
        yield from self._computed("update", parts.update_s)
        self.memory.append((self.now, float(rest)))

    def _evenly(self, nbytes: float) -> None:
        """Record memory for old plans, which have no figures of single operators."""
        if not self.estimate.operators:
            self.memory.append((self.now, nbytes))

    def _moments(self, begun: float, spent: list[tuple[float, int]], rest: int) -> None:
        """Record the memory of operators, which run one after the other from `begun` until now."""
        whole = sum(seconds for seconds, _ in spent)
        done = 0.0
        for seconds, nbytes in spent:
            level = float(rest + nbytes)
            if level != self.memory[-1][1]:
                share = done / whole if whole else 0.0
                self.memory.append((begun + share * (self.now - begun), level))
            done += seconds

    def _ahead(self, flows: list[Flow]) -> dict[str, float]:
        """Return the hidden seconds of weights' communication among these flows, by axis."""
        directions = {flow.direction for flow in flows}
        early = [each for each in self.parts.prefetched if each.direction in directions]
        sent = [flow for flow in flows if flow.collective in AHEAD]
        before = _by_axis(sent, lambda f: f.seconds)
        after = _by_axis(sent, self.flows.seconds)
        return {
            each.axis: min(
                each.hideable_s * after[each.axis] / before[each.axis], each.covers_s * self.slow
            )
            for each in early
            if before.get(each.axis)
        }

    def _but_ahead(self, flows: list[Flow], hidden: dict[str, float]) -> Iterator[Flow]:
        """Return the flows without what `_ahead` hides."""
        exposed = self._exposed([flow for flow in flows if flow.collective in AHEAD], hidden)
        return (next(exposed) if flow.collective in AHEAD else flow for flow in flows)

    def _hidden(self, reduced: list[Flow]) -> dict[str, float]:
        """Return the seconds of reductions hidden behind the backward, by axis.

        Every axis keeps the hidden time that it has in the plan, if it still needs it.  The backward's
        remaining time is divided among the axes that need more.
        """
        planned = dict(self.parts.hideable)
        if not sum(planned.values()) or not self.estimate.hidden_s:
            return {}
        before, after = (
            _by_axis(reduced, lambda f: f.seconds),
            _by_axis(reduced, self.flows.seconds),
        )
        wanted = {axis: s * after[axis] / before[axis] for axis, s in planned.items()}
        covers_s = self.parts.covers_s * self.slow
        share = min(1.0, min(self.parts.covers_s, covers_s) / sum(planned.values()))
        kept = {axis: min(s, planned[axis] * share) for axis, s in wanted.items()}
        more = sum(wanted.values()) - sum(kept.values())
        filled = min(1.0, (covers_s - sum(kept.values())) / more) if more else 0.0
        return {axis: s + (wanted[axis] - s) * filled for axis, s in kept.items()}

    def _exposed(self, flows: list[Flow], hidden: dict[str, float]) -> Iterator[Flow]:
        """Yield the exposed part of these flows: the same share of all that are on an axis."""
        whole = _by_axis(flows, self.flows.seconds)
        for flow in flows:
            of = whole[flow.axis]
            share = 1 - hidden.get(flow.axis, 0.0) / of if of else 0.0
            yield replace(flow, seconds=flow.seconds * share)

    def _computed(self, what: str, seconds: float) -> Iterator[Span]:
        """Yield a span of compute, then advance to the end of the slowest rank's."""
        if seconds:
            yield Span("compute", what, self.now, self.now + seconds * self.pace)
            self.now += seconds * self.slow

    def _beside(self, **seconds: float) -> Iterator[Span]:
        """Yield a slice's part of communication that runs beside compute, one kind after the other."""
        begun = self.now
        for what, whole in seconds.items():
            ended = begun + whole / self.slices
            if ended > begun:
                name = what.replace("_", " ")
                yield Span("communication", name, begun, ended, True)
            begun = ended

    def _part(self, flows: list[Flow], number: int) -> Iterator[Span]:
        """Yield one slice's communication.

        Flows with fewer calls than slices are assigned to the last slices, which contain the loss.
        """
        for flow in flows:
            count = min(flow.calls, self.slices)
            if number >= self.slices - count:
                yield from self._sent([flow], count)

    def _sent(self, flows: Iterable[Flow], parts: int = 1) -> Iterator[Span]:
        """Yield the spans of one of `parts` equal parts of the flows."""
        for flow in flows:
            seconds = self.flows.seconds(flow) / parts
            if seconds:
                what = f"{flow.collective} on {flow.axis}"
                yield Span("communication", what, self.now, self.now + seconds)
                self.now += seconds
