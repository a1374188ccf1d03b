"""The outline of a pipeline plan for `changes`: its stages merged, and the facts only pipelines have."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from autopar.plans.changes import (
    COMPUTE,
    IDLE,
    Figures,
    Kind,
    Outline,
    asked_of,
    figures_of,
    types_of,
)
from autopar.plans.estimate import Estimate
from autopar.plans.pipeline_data import PipelinePlanData, Prediction

RECEIVED = "received_"


def pipeline_outline(plan: PipelinePlanData) -> Outline:
    """Return the outline; a parameter that several stages read belongs to the first of them."""
    schedule = plan.schedule
    stages: dict[str, str] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    stored: dict[str, str] = {}
    used: dict[str, str] = {}
    operators: dict[str, str] = {}
    recompute: dict[str, str] = {}
    for each in plan.stages:
        rest, step, computing = types_of(each.plan)
        for parameter in each.plan.parameters:
            shapes.setdefault(parameter.name, parameter.shape)
            stages.setdefault(parameter.name, str(each.stage))
        for into, found in ((stored, rest), (used, step), (operators, computing)):
            for name, text in found.items():
                if not name.startswith(RECEIVED):
                    into.setdefault(name, text)
        recompute |= {p: m for p, m in each.plan.recompute_of.items() if p not in recompute}
    first = plan.stages[0].plan
    facts = {
        "graph": plan.graph_digest,
        "mesh": str(plan.mesh),
        "stages": str(schedule.stages),
        "workers": "; ".join(f"ranks {_span(w.ranks)}: {w.mesh}" for w in plan.workers),
        "cuts": ", ".join(plan.cuts) or "none",
        "schedule": schedule.name,
        "microbatches": str(plan.microbatches),
        "hardware": plan.hardware,
        "operator times": "modelled" if plan.times is None else str(plan.times),
        "preset": first.preset or "none",
        "optimizer": first.optimizer,
        "precision": first.precision,
        **asked_of(
            plan.memory_limit,
            (c for each in plan.stages for c in each.plan.asked.constraints),
        ),
        "padding": "none",
    }
    return Outline(
        plan.model, plan.digest, shapes, facts, stages, stored, used, operators, recompute,
        {} if plan.prediction is None else _figures(plan, plan.prediction),
    )  # fmt: skip


def _figures(plan: PipelinePlanData, found: Prediction) -> Figures:
    """Return times of the least idle worker, bytes of the fullest one, and figures of each worker."""
    of_worker: Counter[int] = Counter()
    for f in found.stages:
        of_worker[f.worker] += int(f.nbytes)
    # The stages of one worker are not at their peaks at the same time.
    of_worker.update({w: int(peak) - of_worker[w] for w, peak in enumerate(found.peaks)})
    busiest = min(range(len(found.bubbles)), key=lambda worker: found.bubbles[worker])
    fullest = max(of_worker, key=lambda worker: of_worker[worker])
    spent, kept = _of_worker(plan, busiest), _of_worker(plan, fullest)
    made: Figures = {
        **{key: value for key, value in spent.items() if key[0] != "memory"},
        **{key: value for key, value in kept.items() if key[0] == "memory"},
        ("time", "step"): found.step_s,
        ("memory", "peak"): float(of_worker[fullest]),
    }
    for worker, share in enumerate(found.bubbles):
        made["time", f"{IDLE} {worker}"] = share * found.step_s
    for f in found.stages:
        microbatch_s = f.forward_s + f.input_grad_s + f.weight_grad_s
        made["time", f"stage {f.stage} on worker {f.worker}, a microbatch"] = microbatch_s
        made["time", f"stage {f.stage} on worker {f.worker}, once a step"] = f.once_s
    for worker, nbytes in of_worker.items():
        made["memory", f"on worker {worker}"] = float(nbytes)
    return made


def _of_worker(plan: PipelinePlanData, worker: int) -> Figures:
    """Return a worker's figures of one step, summed over its stages."""
    total: Counter[tuple[Kind, str]] = Counter()
    for each in plan.stages:
        if each.worker == worker:
            total.update(_of_step(each.plan.estimate, plan.schedule.runs(each.stage, worker)))
    return dict(total)


def _of_step(of: Estimate, microbatches: int) -> Figures:
    """Return a step's figures from those of one microbatch and the costs once per step.

    Old plans without `Parts` do not distinguish the two; then compute is omitted.
    """
    flows = tuple(
        replace(flow, seconds=microbatches * flow.seconds) if flow.scope == "microbatch" else flow
        for flow in of.flows
    )
    sent_s = sum(flow.seconds for flow in flows)
    made = replace(of, flows=flows, exposed_s=sent_s - of.hidden_s)
    if of.parts is None:
        return {key: value for key, value in figures_of(made).items() if key != COMPUTE}
    forward_s, backward_s = microbatches * of.parts.forward_s, microbatches * of.parts.backward_s
    parts = replace(of.parts, forward_s=forward_s, backward_s=backward_s)
    compute_s = forward_s + backward_s + parts.update_s
    return figures_of(replace(made, parts=parts, compute_s=compute_s))


def _span(ranks: tuple[int, ...]) -> str:
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"
