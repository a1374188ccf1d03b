"""Refuses, before a step runs, the plans that torch's pipeline engine cannot execute."""

from __future__ import annotations

from autopar.errors import InputError
from autopar.ir.graph import Graph
from autopar.ir.result_layout import leaving
from autopar.ir.split import Stages
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.runtime.pipeline.relays import Relays
from autopar.runtime.pipeline.tiles import Layout

_WHOLE = "Choose a schedule with whole backwards, such as 1f1b, or other cuts."


def check_limits(plan: PipelinePlan, relays: Relays) -> None:
    """Raise `InputError` for a plan that torch's engine cannot execute.

    It needs equal layouts on both sides of each stage boundary, since device i of a stage communicates
    only with device i of the next.  The check depends on plan and graphs alone, so all ranks agree.
    """
    stages = relays.stages
    if stages.graphs[-1].loss is None:
        raise InputError(
            "Torch's pipeline engine computes the loss in the last stage; in this plan another "
            "stage does. Choose cuts before it."
        )
    _check_workers(plan)
    _check_gradients(stages)
    for border, names in enumerate(relays.borders):
        for name in names:
            _check_layout(plan, relays, border, name)
    if plan.schedule.splits_backward:
        _check_halves(relays)


def layout_of(plan: PipelinePlan, stages: Stages, stage: int, name: str) -> Layout:
    """Return the layout of a tensor that enters or leaves a stage, on the stage's only worker."""
    (worker,) = plan.schedule.holders[stage]
    graph = stages.graphs[stage]
    form = plan.of[stage, worker].sharding(graph, name)
    if graph.producer[name].op != "received":
        form = leaving(graph.tensors[name], graph, form)
    return Layout(plan.workers[worker].ranks, plan.workers[worker].mesh, form)


def _check_workers(plan: PipelinePlan) -> None:
    first = plan.workers[0]
    for number, worker in enumerate(plan.workers):
        if len(worker.ranks) != len(first.ranks):
            raise InputError(
                "In torch's pipeline engine each device communicates with one of the next "
                f"stage; worker {number} has {len(worker.ranks)} of them, worker 0 "
                f"{len(first.ranks)}. Pass stages of equal meshes."
            )
    for place, ranks in enumerate(zip(*(worker.ranks for worker in plan.workers), strict=True)):
        if list(ranks) != sorted(ranks):
            raise InputError(
                f"Torch's pipeline engine numbers ranks in ascending order; place {place} of the "
                f"workers has ranks {', '.join(map(str, ranks))}."
            )


def _check_gradients(stages: Stages) -> None:
    """Raise `InputError` if torch's engine would send zeros where there is no gradient.

    With a gradient of zeros instead of none, an optimizer would still apply weight decay.
    """
    returning = {crossing.tensor for crossing in stages.crossings if crossing.returns}
    for crossing in stages.crossings:
        tensor = stages.graphs[crossing.source].tensors[crossing.tensor]
        if tensor.differentiable and tensor.name not in returning:
            raise InputError(
                f"Torch's pipeline engine would send a gradient of zeros for {tensor.name}, which "
                f"stage {crossing.target} reads without one (behind a detach). Choose cuts behind that, "
                "or detach it where it is made."
            )


def _check_layout(plan: PipelinePlan, relays: Relays, border: int, name: str) -> None:
    source = relays.made_by[name]
    shape = relays.stages.graphs[source].tensors[name].shape
    made = layout_of(plan, relays.stages, source, name)
    if border + 1 not in relays.readers[name]:
        return
    read = layout_of(plan, relays.stages, border + 1, name)
    for place in range(len(made.ranks)):
        if made.tile(place, shape) != read.tile(place, shape):
            raise InputError(
                f"Torch's pipeline engine passes local tensors on as they are; stage {source} leaves "
                f"{name} as {made.form} on ({made.mesh}), stage {border + 1} reads it as {read.form} on "
                f"({read.mesh}). Constrain both to one layout."
            )


def _check_halves(relays: Relays) -> None:
    """Raise `InputError` if torch's split backward would lose or repeat work.

    Torch's I runs from the results to the received tensors, and its W from there to each weight.  The
    first stage's backward runs as a whole, in W.
    """
    for stage in range(1, len(relays.stages.graphs)):
        graph = relays.stages.graphs[stage]
        fed = _dependents(graph, "received")
        for name in sorted(_dependents(graph, "parameter") - fed):
            if name in (*graph.sends, graph.loss):
                raise InputError(
                    f"{name}, a result of stage {stage}, needs weights but nothing that the stage gets "
                    "from others. Where a backward is split (I and W), torch's pipeline engine would "
                    f"leave such weights' gradients out. {_WHOLE}"
                )
        name = _branching(graph, fed)
        if name:
            raise InputError(
                f"{name} in stage {stage} needs weights but nothing that the stage gets from others, "
                "and several operators read it. Where a backward is split (I and W), torch's pipeline "
                f"engine would go through its graph more than once. {_WHOLE}"
            )


def _branching(graph: Graph, fed: set[str]) -> str:
    """Return a tensor computed from weights alone that several operators on received data use, or ''."""
    own = _dependents(graph, "parameter") - fed
    enters: dict[str, set[str]] = {}
    for node in reversed(graph.nodes):
        for tensor in node.outputs:
            if tensor.name in own:
                found = enters.setdefault(tensor.name, set())
                for reader in graph.consumers[tensor.name]:
                    made = {each.name for each in reader.outputs}
                    found |= {reader.name} if made & fed else set()
                    found.update(*(enters.get(name, ()) for name in made & own))
    computed = (name for name in sorted(enters) if graph.producer[name].op != "parameter")
    return next((name for name in computed if len(enters[name]) > 1), "")


def _dependents(graph: Graph, op: str) -> set[str]:
    """Return the differentiable tensors that depend on leaves of kind `op`."""
    found: set[str] = set()
    for node in graph.nodes:
        if node.op == op or any(name in found for name in node.operands):
            found.update(tensor.name for tensor in node.outputs if tensor.differentiable)
    return found
