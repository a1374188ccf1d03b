"""Predicts the step of a compiled pipeline: simulates its schedule with the costs of its stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from autopar.capture.saved import Known, saved
from autopar.cost.spent import Spent, spent_by
from autopar.ir.graph import Graph
from autopar.ir.placement import Sharding
from autopar.ir.split import Crossing, Stages
from autopar.pipeline.build.borders import Border, latency_s, link_of, name_of, seconds, tiles
from autopar.pipeline.build.copied import copied
from autopar.pipeline.build.staged import on_full_hosts
from autopar.pipeline.schedules import Schedule
from autopar.pipeline.schedules.kept import most_in_flight, most_versions
from autopar.pipeline.schedules.lower import without_transfers
from autopar.pipeline.simulate import Costs, Link, Network, StageCost, Traffic, simulate
from autopar.plans.pipeline_data import Joined, Passed, Prediction, StageFigures, StagePlan
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.sharding.sharding_problem import Settings, prices_of
from cost_models.hardware import Hardware


def predict(
    plan: PipelinePlan, stages: Stages, hardware: Hardware, settings: Settings
) -> Prediction:
    """Return the simulated step of a pipeline plan, and the costs of its stages.

    For a stream of batches, the step is the average time per batch.
    """
    return predict_with_peaks(plan, stages, hardware, settings)[0]


def predict_with_peaks(
    plan: PipelinePlan, stages: Stages, hardware: Hardware, settings: Settings
) -> tuple[Prediction, tuple[float, ...]]:
    """Return the prediction, and the peak bytes of each worker."""
    spent = stages_spent(plan, stages, hardware, settings)
    schedule = without_transfers(plan.schedule)
    stage_costs = costs(plan, stages, spent, hardware)
    simulated = simulate(schedule, stage_costs)
    prediction = Prediction(
        simulated.step / schedule.batches,
        simulated.bubble_rates,
        tuple(_figures(each, spent[each.stage, each.worker], schedule) for each in plan.stages),
        passed=tuple(
            Passed(t.source, t.target, t.nbytes, t.gradient_nbytes)
            for t in stage_costs.traffic or ()
        ),
        joined=tuple(_joined(plan, stage_costs, hardware)),
        copied=copied(plan, stages, hardware),
        peaks=simulated.peaks,
    )
    return prediction, simulated.peaks


def _joined(plan: PipelinePlan, stage_costs: Costs, hardware: Hardware) -> Iterator[Joined]:
    """Yield every pair of workers that exchange tensors, each pair once."""
    for (one, two), (place,) in stage_costs.network.routes.items():
        if one < two:
            name = name_of(hardware, plan.workers[one], plan.workers[two])
            yield Joined(one, two, name, stage_costs.network.links[place].latency)


def stages_spent(
    plan: PipelinePlan, stages: Stages, hardware: Hardware, settings: Settings
) -> dict[tuple[int, int], Spent]:
    """Return (stage, worker) -> the costs of the stage."""
    shared = on_full_hosts(hardware, plan.mesh)
    known: Known = {}
    kept = [saved(graph, hardware.device.kind, known) for graph in stages.graphs]
    found = {
        (each.stage, each.worker): spent_by(
            each.plan,
            stages.graphs[each.stage],
            prices_of(each.plan.mesh, shared, _settings(settings, each, plan)),
            kept[each.stage],
        )
        for each in plan.stages
    }
    prices = prices_of(plan.mesh, shared, settings)
    for (stage, worker), spent in found.items():
        forward, back = _messages(plan, stages, stage, worker)
        found[stage, worker] = replace(
            spent,
            forward_s=spent.forward_s + prices.messages(forward),
            input_grad_s=spent.input_grad_s + prices.messages(back),
        )
    for each in copied(plan, stages, hardware):
        key = each.stage, each.worker
        found[key] = replace(found[key], exposed_s=found[key].exposed_s + each.seconds)
    return found


def _messages(plan: PipelinePlan, stages: Stages, stage: int, worker: int) -> tuple[int, int]:
    """Return how many tensors and gradients per microbatch a stage exchanges with other workers."""
    held = plan.schedule.held[worker]
    crossing = [
        c
        for c in stages.crossings
        for here, there in ((c.source, c.target), (c.target, c.source))
        if here == stage and there not in held
    ]
    return len(crossing), sum(c.returns for c in crossing)


def costs(
    plan: PipelinePlan,
    stages: Stages,
    spent: Mapping[tuple[int, int], Spent],
    hardware: Hardware,
) -> Costs:
    """Return the simulator's costs; transfers are given in seconds, on links of bandwidth 1."""
    holders = plan.schedule.holders
    made = tuple(
        _slowest([_as_run(spent[stage, worker], plan.schedule) for worker in workers])
        for stage, workers in enumerate(holders)
    )
    busy = on_full_hosts(hardware, plan.mesh)
    pairs = sorted({(c.source, c.target) for c in stages.crossings})
    traffic = []
    links: dict[tuple[int, int], Link] = {}
    for source, target in pairs:
        here = [c for c in stages.crossings if (c.source, c.target) == (source, target)]
        traffic.append(_traffic(plan, stages.graphs[source], here, hardware))
        for a in holders[source]:
            for b in holders[target]:
                link = link_of(hardware, plan.workers[a], plan.workers[b])
                links[a, b] = links[b, a] = Link(latency_s(link, busy), 1.0)
    routes = {pair: (place,) for place, pair in enumerate(links)}
    return Costs(made, tuple(traffic), Network(tuple(links.values()), routes))


def _settings(settings: Settings, each: StagePlan, plan: PipelinePlan) -> Settings:
    """Return settings with the stage's microbatches per step and weight versions on this worker."""
    versions = most_versions(plan.schedule.of_stage(each.stage, each.worker))
    ran = plan.schedule.runs(each.stage, each.worker)
    return replace(settings, microbatches=ran, versions=versions)


def _as_run(spent: Spent, schedule: Schedule) -> Spent:
    """Return the costs under the schedule.

    If it splits backwards, weight gradients are deferred in every microbatch, also in those whose
    backward is not split.  Gradient reductions then overlap weight gradients only.
    """
    if not schedule.splits_backward:
        return spent
    whole_s = spent.input_grad_s + spent.weight_grad_s
    return replace(
        spent,
        input_grad_s=spent.input_grad_s + spent.split_s,
        covers_s=spent.covers_s * (spent.weight_grad_s / whole_s if whole_s else 0.0),
    )


def _slowest(every: Sequence[Spent]) -> StageCost:
    """Return the costs of a stage: the maximum of each figure over its copies."""
    return StageCost(
        forward=max(s.forward_s for s in every),
        input_gradient=max(s.input_grad_s for s in every),
        weight_gradient=max(s.weight_grad_s for s in every),
        kept=max(s.kept_nbytes for s in every),
        kept_for_weights=max(s.kept_nbytes for s in every),
        working=max(s.working_nbytes for s in every),
        static=max(s.rest_nbytes for s in every),
        reduction=max(s.hideable_s - s.hidden_s for s in every),
        update=max(s.exposed_s for s in every),
    )


def _traffic(
    plan: PipelinePlan, graph: Graph, crossings: Sequence[Crossing], hardware: Hardware
) -> Traffic:
    """Return the traffic between two stages: the slowest transfer between any of their copies."""
    first = crossings[0]
    there, back = 0.0, 0.0
    for a in plan.schedule.holders[first.source]:
        for b in plan.schedule.holders[first.target]:
            link = link_of(hardware, plan.workers[a], plan.workers[b])
            one, two = plan.of[first.source, a], plan.of[first.target, b]
            out = into = 0.0
            for crossing in crossings:
                tensor = graph.tensors[crossing.tensor]
                left = _border(one, one.sharding(graph, tensor.name))
                arriving = two.choice[f"received_{tensor.name}"].outputs[0]
                right = _border(two, arriving)
                out += seconds(tensor.nbytes, left, right, link)
                into += seconds(tensor.nbytes, right, left, link) * crossing.returns
            there, back = max(there, out), max(back, into)
    flows = any(c.returns for c in crossings)
    return Traffic(first.source, first.target, there, back if flows else None)


def _border(plan: Plan, form: Sharding) -> Border:
    return Border(plan.mesh.world_size, tiles(form, plan.mesh))


def _figures(each: StagePlan, spent: Spent, schedule: Schedule) -> StageFigures:
    spent = _as_run(spent, schedule)
    held = most_in_flight(schedule.of_stage(each.stage, each.worker))
    return StageFigures(
        each.stage, each.worker, spent.forward_s, spent.input_grad_s, spent.weight_grad_s,
        spent.once_s, held, spent.rest_nbytes + held * spent.kept_nbytes + spent.working_nbytes,
        spent.hideable_s - spent.hidden_s,
    )  # fmt: skip
