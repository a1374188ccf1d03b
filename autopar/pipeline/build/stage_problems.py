"""Reconstructs the sharding problems of a pipeline's stages from its plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from autopar.capture.saved import saved
from autopar.cost.parameters import Storage
from autopar.ir.graph import Graph
from autopar.ir.split import Stages
from autopar.pipeline.build.staged import on_full_hosts
from autopar.pipeline.schedules.kept import most_in_flight, most_versions
from autopar.plans.pipeline_data import StagePlan
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.sharding.asked import settings_of
from autopar.sharding.narrow import applies
from autopar.sharding.sharding_problem import Settings, ShardingProblem, pose
from cost_models.hardware import Hardware
from cost_models.measured import Times


@dataclass(frozen=True)
class StageProblem:
    """A stage's plan on one worker, with the graph, settings and hardware it was made for."""

    stage: StagePlan
    graph: Graph
    settings: Settings
    hardware: Hardware

    def posed(self) -> ShardingProblem:
        """Return the sharding problem of the stage."""
        plan = self.stage.plan
        kept = saved(self.graph, self.hardware.device.kind)
        return pose(self.graph, plan.mesh, self.hardware, self.settings, kept, plan.asked.recompute)


def stage_problems(
    plan: PipelinePlan, stages: Stages, hardware: Hardware, times: Times | None
) -> Iterator[StageProblem]:
    """Yield the problem of every stage; parameter storage from earlier stages of a worker is fixed."""
    rests: dict[tuple[int, str], Storage] = {}
    shared = on_full_hosts(hardware, plan.mesh)
    for each in plan.stages:
        part = stages.graphs[each.stage]
        asked = settings_of(each.plan, times)
        actions = plan.schedule.of_stage(each.stage, each.worker)
        settings = replace(
            asked,
            constraints=tuple(c for c in asked.constraints if applies(c, part)),
            storage={name: found for (where, name), found in rests.items() if where == each.worker},
            microbatches=plan.schedule.runs(each.stage, each.worker),
            in_flight=most_in_flight(actions),
            versions=most_versions(actions),
            padding=(),
            pads_batch=False,
        )
        yield StageProblem(each, part, settings, shared)
        for entry in each.plan.parameters:
            found = Storage(entry.stored, entry.leaf, entry.regather)
            rests.setdefault((each.worker, entry.name), found)
