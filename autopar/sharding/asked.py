"""Reconstructs the sharding problem that a plan answers."""

from __future__ import annotations

from collections.abc import Mapping

from autopar.capture.saved import saved
from autopar.cost.parameters import Storage
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.plans.plan import Plan
from autopar.request import presets
from autopar.request.constraints import Constraint
from autopar.sharding.sharding_problem import Settings, ShardingProblem, pose
from cost_models.hardware import Hardware
from cost_models.measured import Times


def posed_for(
    plan: Plan, graph: Graph, hardware: Hardware, times: Times | None = None
) -> ShardingProblem:
    """Return the problem that a plan answers; `times` are the measured times of its operators."""
    settings = settings_of(plan, times)
    kept = saved(graph, hardware.device.kind)
    return pose(graph, plan.mesh, hardware, settings, kept, plan.asked.recompute)


def settings_of(plan: Plan, times: Times | None = None) -> Settings:
    """Return the settings with which a plan was made."""
    asked = plan.asked
    return Settings(
        optimizer=plan.optimizer,
        states=asked.states,
        whole_states=asked.whole_states,
        reads=asked.reads,
        memory_limit=asked.memory_limit,
        preset=plan.preset,
        constraints=(*preset_constraints(plan.preset, plan.mesh), *asked.constraints),
        regather=presets.regathers(plan.preset) if plan.preset else None,
        precision=plan.precision,
        batch=asked.batch,
        storage=storage_of(plan if asked.kept else None),
        regathers=asked.regathers,
        compression=plan.compression,
        first=not asked.kept,
        times=times,
    )


def storage_of(first: Plan | None) -> Mapping[str, Storage]:
    """Return the storages of a first plan's parameters, which later programs must keep."""
    if first is None:
        return {}
    return {p.name: Storage(p.stored, p.leaf, False) for p in first.parameters}


def preset_constraints(name: str | None, mesh: Mesh) -> tuple[Constraint, ...]:
    """Return the constraints of a preset; none without a name."""
    return presets.load(name, mesh) if name else ()
