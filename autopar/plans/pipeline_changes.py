"""The outline of a pipeline's plan, for `changes`: its stages as one, and what only it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autopar.plans.changes import Figures, Outline, types_of

if TYPE_CHECKING:
    from autopar.plans.pipeline_plan import PipelinePlan, Prediction

RECEIVED = "received_"


def pipeline_outline(plan: PipelinePlan) -> Outline:
    """A parameter that several stages read belongs to the first of them."""
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
    }
    return Outline(
        plan.model, plan.digest, shapes, facts, stages, stored, used, operators, recompute,
        {} if plan.prediction is None else _figures(plan.prediction),
    )  # fmt: skip


def _figures(found: Prediction) -> Figures:
    made: Figures = {("time", "step"): found.step_s}
    of_worker: dict[int, float] = {}
    for worker, share in enumerate(found.bubbles):
        made["time", f"idle on worker {worker}"] = share * found.step_s
    for f in found.stages:
        microbatch_s = f.forward_s + f.input_grad_s + f.weight_grad_s
        made["time", f"stage {f.stage} on worker {f.worker}, a microbatch"] = microbatch_s
        of_worker[f.worker] = of_worker.get(f.worker, 0.0) + f.nbytes
    made["memory", "peak"] = max(of_worker.values(), default=0.0)
    for worker, nbytes in of_worker.items():
        made["memory", f"on worker {worker}"] = nbytes
    return made


def _span(ranks: tuple[int, ...]) -> str:
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"
