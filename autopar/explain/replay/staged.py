"""Replays a pipeline plan: simulates its schedule with the costs recorded in the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autopar.errors import InputError, PlanError
from autopar.explain.replay.conditions import Conditions
from autopar.explain.replay.flows import Flows, checked
from autopar.explain.replay.played import Played, Row, Span
from autopar.pipeline.build.staged import on_full_hosts
from autopar.pipeline.planner import FAMILIES
from autopar.pipeline.schedules import SCHEDULES, Schedule, build
from autopar.pipeline.schedules.action import COMPUTE
from autopar.pipeline.schedules.stream import typical
from autopar.pipeline.simulate import Costs, Link, Network, Simulated, StageCost, Traffic, simulate
from autopar.plans.estimate import Estimate
from autopar.plans.pipeline_data import Prediction, StageFigures, WorkerPlan
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from cost_models.hardware import Hardware

NAMES = {
    "F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient", "U": "update",
}  # fmt: skip


def play_stages(plan: PipelinePlan, conditions: Conditions, hardware: Hardware | None) -> Played:
    """Return the replayed step; for a stream of batches, one batch's share."""
    found = plan.prediction
    if found is None or (len(plan.stages) > 1 and not found.passed):
        raise PlanError(
            "This plan file does not record the transfers between stages, because an older "
            "autopar wrote it: make it again with `autopar plan --stages auto`."
        )
    axes = [axis for worker in plan.workers for axis in worker.mesh.names]
    conditions.check(axes, plan.mesh.world_size)
    profile = checked(hardware, plan.hardware, plan.hardware_digest, conditions)
    if profile is not None:
        profile = on_full_hosts(profile, plan.mesh)
    schedule = _schedule(plan, conditions)
    costs = _costs(plan, found, conditions, profile, schedule)
    simulated = simulate(schedule, costs)
    return Played(
        plan.model, str(conditions), simulated.step / schedule.batches, found.step_s,
        tuple(_rows(plan, simulated)), plan.memory_limit,
        schedule.microbatches / schedule.batches / plan.microbatches,
        tuple(_notes(plan, conditions, schedule)), simulated,
    )  # fmt: skip


def _schedule(plan: PipelinePlan, conditions: Conditions) -> Schedule:
    """Return the plan's schedule, or one of its name with another number of microbatches.

    Only compute actions and updates are kept; the simulator inserts the transfers.
    """
    made, count = plan.schedule, conditions.microbatches
    if count is not None and count != plan.microbatches:
        workers = len(plan.workers)
        if made.asynchronous:
            made = typical(made.name, workers, count)
        elif made.name in FAMILIES and made.stages == workers:
            made = FAMILIES[made.name].make(workers, count)
        elif made.name in SCHEDULES:
            made = build(made.name, workers, count, made.stages)
        else:
            raise InputError(
                f"The schedule {made.name} was made for {plan.microbatches} microbatches; plan again "
                f"with --microbatches {count}."
            )
    lists = (tuple(a for a in row if a.kind in COMPUTE or a.kind == "U") for row in made.workers)
    return replace(made, workers=tuple(lists))


def _costs(
    plan: PipelinePlan,
    found: Prediction,
    conditions: Conditions,
    hardware: Hardware | None,
    schedule: Schedule,
) -> Costs:
    """Return the costs of the prediction under the conditions; the slowest copy of a stage counts."""
    by_stage: dict[int, list[StageCost]] = {}
    for figures in found.stages:
        worker = plan.workers[figures.worker]
        own = plan.of[figures.stage, figures.worker]
        flows = Flows(own.mesh, conditions, hardware)
        slow = conditions.slowest(worker.ranks)
        copied = [c for c in found.copied if (c.stage, c.worker) == (figures.stage, figures.worker)]
        copied_s = sum(c.seconds for c in copied)
        cost = _cost(replace(figures, once_s=figures.once_s - copied_s), own, flows, slow)
        waits = sum(
            c.seconds / _faster(plan, conditions, c.worker, c.other, c.link) for c in copied
        )
        cost = replace(cost, update=cost.update + waits)
        by_stage.setdefault(figures.stage, []).append(cost)
    stages = tuple(_slowest(by_stage[stage]) for stage in range(schedule.stages))
    factor = {(j.one, j.two): _faster(plan, conditions, j.one, j.two, j.link) for j in found.joined}
    holders = plan.schedule.holders
    traffic = []
    for each in found.passed:
        pairs = [(a, b) for a in holders[each.source] for b in holders[each.target] if a != b]
        slower = min((factor[min(pair), max(pair)] for pair in pairs), default=1.0)
        back = None if each.back_s is None else each.back_s / slower
        traffic.append(Traffic(each.source, each.target, each.there_s / slower, back))
    links = {}
    for joined in found.joined:
        for pair in ((joined.one, joined.two), (joined.two, joined.one)):
            links[pair] = Link(joined.latency_s, 1.0)
    routes = {pair: (place,) for place, pair in enumerate(links)}
    return Costs(stages, tuple(traffic), Network(tuple(links.values()), routes))


def _faster(plan: PipelinePlan, conditions: Conditions, one: int, two: int, link: str) -> float:
    """Return the bandwidth factor between two workers.

    It is that of their link, times those of all mesh axes on which they have no coordinate in common.
    """
    factor = conditions.bandwidth.get(link, 1.0)
    for axis, name in enumerate(plan.mesh.names):
        places = [
            {plan.mesh.coordinate(rank)[axis] for rank in plan.workers[worker].ranks}
            for worker in (one, two)
        ]
        if set.isdisjoint(*places):
            factor *= conditions.bandwidth.get(name, 1.0)
    return factor


def _cost(figures: StageFigures, own: Plan, flows: Flows, slow: float) -> StageCost:
    """Return the cost of one copy of a stage under changed bandwidth and pace."""
    e = own.estimate
    forward = _stretched(figures.forward_s, e, flows, slow, "forward")
    whole = figures.input_grad_s + figures.weight_grad_s
    times = _stretched(whole, e, flows, slow, "backward") / whole if whole else 1.0
    plain = sum(flow.seconds for flow in e.flows if flow.scope == "step")
    sent = flows.total(e.flows, "step")
    # Old plans without parts: all communication once per step counts as exposed.
    reduced = figures.reduced_s * (sent / plain if plain else 1.0)
    once = figures.once_s - figures.reduced_s
    exposed = max(0.0, plain - (sum(s for _, s in e.parts.hideable) if e.parts else 0.0))
    exposed = min(exposed, once)
    update = (once - exposed) * slow + exposed * (sent / plain if plain else 1.0)
    return StageCost(
        forward=forward,
        input_gradient=figures.input_grad_s * times,
        weight_gradient=figures.weight_grad_s * times,
        kept=e.activation_nbytes,
        kept_for_weights=e.activation_nbytes,
        working=e.working_nbytes,
        static=e.parameter_nbytes + e.gradient_nbytes + e.optimizer_nbytes,
        reduction=reduced,
        update=update,
    )


def _stretched(seconds: float, e: Estimate, flows: Flows, slow: float, direction: str) -> float:
    """Return a microbatch's seconds: compute scaled by `slow`, collectives by their links."""
    known = [f for f in e.flows if f.scope == "microbatch" and f.direction == direction]
    sent = min(seconds, sum(flow.seconds for flow in known))
    return (seconds - sent) * slow + sum(map(flows.seconds, known))


def _slowest(every: list[StageCost]) -> StageCost:
    """Return the maximum of each figure."""
    names = ("forward", "input_gradient", "weight_gradient", "kept", "kept_for_weights", "working",
             "static", "reduction", "update")  # fmt: skip
    return StageCost(**{name: max(getattr(each, name) for each in every) for name in names})


def _rows(plan: PipelinePlan, simulated: Simulated) -> Iterator[Row]:
    """Yield a row per worker: its actions, outgoing transfers, gradient reductions and update."""
    for number, worker in enumerate(plan.workers):
        spans = [
            Span("compute", f"{NAMES[r.action.kind]} {r.action}", r.start, r.end)
            for r in simulated.ran[number]
        ]
        spans += [
            Span("communication", f"send to worker {t.lane.receiver}", t.start, t.end, True)
            for t in simulated.transfers
            if t.lane.sender == number
        ]
        spans += [
            Span("communication", f"reduce gradients of stage {r.stage}", r.start, r.end)
            for r in simulated.reductions
            if number in r.workers and r.end > r.start
        ]
        held = simulated.schedule.held[number]
        begin, end = simulated.updates[number]
        if end > begin:
            spans.append(Span("compute", "update", begin, end))
        yield Row(
            f"worker {number} ({_ranks(worker)})", worker.ranks, tuple(spans),
            ((0.0, sum(simulated.costs.stages[stage].static for stage in held)),
             *simulated.memory(number)), simulated.busy[number],
        )  # fmt: skip


def _ranks(worker: WorkerPlan) -> str:
    first, last = worker.ranks[0], worker.ranks[-1]
    return f"rank {first}" if first == last else f"ranks {first}-{last}"


def _notes(plan: PipelinePlan, conditions: Conditions, schedule: Schedule) -> Iterator[str]:
    if conditions.microbatches not in (None, plan.microbatches):
        times = (conditions.microbatches or 0) / plan.microbatches
        yield (
            f"Microbatches keep their size, so the batch is {times:g} times as large; for the same "
            "batch in other parts plan again with --microbatches."
        )
    if conditions.stragglers and any(len(holders) > 1 for holders in schedule.holders):
        yield "A stage that several workers hold is as slow on all of them as on the slowest."
    if plan.times is not None:
        yield f"operators: {plan.sources}"
    if schedule.asynchronous:
        yield f"The schedule covers {schedule.batches} batches; the step is the share of one."
