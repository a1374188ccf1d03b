"""Compiles a pipeline: splits the graph, compiles its stages, and lowers the schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autopar.capture.saved import saved
from autopar.cost.parameters import Storage
from autopar.errors import InputError
from autopar.ir.blocks import blocks
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.ir.split import Stages, split
from autopar.pipeline.build.cuts import balanced, between_layers
from autopar.pipeline.build.pipeline_spec import PipelineSpec
from autopar.pipeline.build.stage_compiler import StageCompiler, StageRequest
from autopar.pipeline.schedules import Schedule, lower
from autopar.pipeline.schedules.kept import most_in_flight, most_versions
from autopar.plans.pipeline_data import StagePlan, WorkerPlan
from autopar.plans.pipeline_plan import PipelinePlan, edges
from autopar.request import presets
from autopar.sharding.narrow import applies
from autopar.sharding.sharding_problem import Settings
from autopar.solver.gap_tolerance import FAIR
from cost_models.hardware import Hardware, digest

Limits = Mapping[tuple[int, int], float | None]
"""Memory limits in bytes per device by (stage, worker); None: no limit."""


@dataclass(frozen=True)
class Staged:
    """A pipeline plan with the graphs and emitted sources of its stages."""

    plan: PipelinePlan
    stages: Stages
    sources: Mapping[tuple[int, int], str]
    """By (stage, worker)."""


def compile_pipeline(
    graph: Graph,
    mesh: Mesh,
    hardware: Hardware,
    settings: Settings,
    wanted: PipelineSpec,
    compiler: StageCompiler | None = None,
    limits: Limits | None = None,
) -> Staged:
    """Compile stages for given workers and schedule: at the given cuts or layers, or of equal FLOPs.

    `graph` is the graph of one microbatch; `limits` is as in `compile_stages`.
    """
    schedule = wanted.build()
    cuts = wanted.cuts or balanced(graph, wanted.shares(schedule))
    if wanted.layers is not None:
        cuts = between_layers(graph, wanted.layers, wanted.stages)
    stages = split(graph, cuts)
    return compile_stages(
        graph, stages, cuts, mesh, hardware, settings, wanted.workers, schedule, compiler=compiler,
        limits=limits,
    )  # fmt: skip


def compile_stages(
    graph: Graph,
    stages: Stages,
    cuts: Sequence[str],
    mesh: Mesh,
    hardware: Hardware,
    settings: Settings,
    workers: tuple[WorkerPlan, ...],
    schedule: Schedule,
    storage: Mapping[tuple[int, str], Storage] | None = None,
    compiler: StageCompiler | None = None,
    limits: Limits | None = None,
) -> Staged:
    """Compile every stage on every worker that holds it.

    `storage` has parameter shardings that are already fixed, by worker and parameter.  `compiler` may
    be reused from stages of the same graph and mesh.  Without `limits`, the stages of a worker share
    its memory equally.
    """
    if schedule.asynchronous:
        _refuse_ties(stages, schedule)
    rests = dict(storage or {})
    compiler = compiler or stage_compiler(graph, mesh, hardware)
    limits = limits or _equal_shares(settings.memory_limit, schedule)
    plans: list[StagePlan] = []
    sources: dict[tuple[int, int], str] = {}

    def asked(stage: int, worker: int) -> StageRequest:
        part = stages.graphs[stage]
        limited = replace(settings, memory_limit=limits[stage, worker])
        limited = _on_mesh(limited, workers[worker].mesh)
        own = _settings(limited, part, stage, worker, schedule, rests)
        return StageRequest(part, workers[worker].mesh, own)

    held = [(stage, worker) for stage, on in enumerate(schedule.holders) for worker in on]
    compiler.prepare([asked(*each) for each in held if not _waits(*each, stages, schedule)])
    for stage, worker in held:
        plan, sources[stage, worker] = compiler.compiled(asked(stage, worker))
        plans.append(StagePlan(stage, worker, plan))
        for p in plan.parameters:
            rests.setdefault((worker, p.name), Storage(p.stored, p.leaf, p.regather))
    lowered = lower(schedule, edges(stages))
    count = schedule.microbatches // schedule.batches
    plan_ = PipelinePlan(
        graph.name, graph.digest, mesh, tuple(cuts), count, str(lowered), workers, tuple(plans),
        hardware=hardware.device.name, hardware_digest=digest(hardware),
        versions=plans[0].plan.versions, memory_limit=settings.memory_limit,
    )  # fmt: skip
    return Staged(plan_, stages, sources)


def _equal_shares(limit: float | None, schedule: Schedule) -> Limits:
    return {
        (stage, worker): None if limit is None else limit / len(stages)
        for worker, stages in enumerate(schedule.held)
        for stage in stages
    }


def stage_compiler(graph: Graph, mesh: Mesh, hardware: Hardware) -> StageCompiler:
    """Return a compiler for the stages of this graph."""
    return StageCompiler(on_full_hosts(hardware, mesh), saved(graph, hardware.device.kind))


def _waits(stage: int, worker: int, stages: Stages, schedule: Schedule) -> bool:
    """Return whether an earlier stage on the same worker fixes the storage of a parameter here."""
    before = [s for s in range(stage) if worker in schedule.holders[s]]
    return any(stage in readers and not {*before}.isdisjoint(readers) for _, readers in stages.ties)


def _refuse_ties(stages: Stages, schedule: Schedule) -> None:
    """Raise `InputError` if stages share a weight that each would update at a different time."""
    for name, readers in stages.ties:
        nodes = (n for n in stages.graphs[readers[0]].leaves("parameter") if n.target == name)
        if any(node.outputs[0].differentiable for node in nodes):
            raise InputError(
                f"Parameter {name!r} is read by stages {', '.join(map(str, readers))}, which "
                f"{schedule.name} updates at different times, so its copies would diverge. Untie "
                "it (Hugging Face: tie_word_embeddings=False in the configuration), cut "
                "elsewhere, or take a synchronous schedule."
            )


def on_full_hosts(hardware: Hardware, mesh: Mesh) -> Hardware:
    """Return the profile with fully used hosts, since other stages run on the same hosts."""
    return hardware.filled(min(mesh.world_size, hardware.devices_per_host))


def _on_mesh(settings: Settings, mesh: Mesh) -> Settings:
    """Return settings in which a preset's axes are those of the stage's own mesh, not the whole mesh."""
    if not settings.preset:
        return settings
    own = tuple(c for c in settings.constraints if not c.optional)
    return replace(settings, constraints=(*presets.load(settings.preset, mesh), *own))


def _settings(
    settings: Settings,
    part: Graph,
    stage: int,
    worker: int,
    schedule: Schedule,
    rests: Mapping[tuple[int, str], Storage],
) -> Settings:
    """Return the settings of one stage: the constraints that apply to it, and existing storage."""
    own = schedule.of_stage(stage, worker)
    return replace(
        settings,
        microbatches=schedule.runs(stage, worker),
        in_flight=most_in_flight(own),
        versions=most_versions(own),
        constraints=tuple(c for c in settings.constraints if applies(c, part)),
        storage={
            node.target: rests[worker, node.target]
            for node in part.leaves("parameter")
            if (worker, node.target) in rests
        },
        recompute=settings.recompute if blocks(part) else None,
        padding=(),
        pads_batch=False,
        care=FAIR,
    )
