"""A workload whose loads are sums -> its plan of stages, or the reason why there is none."""

from __future__ import annotations

import numpy as np

from autopar.errors import InfeasibleError
from autopar.pipeline.planner.evaluate import Split as Explicit
from autopar.pipeline.planner.evaluate import load_of
from autopar.pipeline.planner.lattice.additive import AdditiveLoads, Move
from autopar.pipeline.planner.lattice.effort import Effort
from autopar.pipeline.planner.lattice.search import Split, best_split
from autopar.pipeline.planner.loaded_stage import LoadedStage, ThroughputPlan
from autopar.pipeline.planner.workload import Workload


def least_additive_load(workload: Workload, loads: AdditiveLoads, effort: Effort) -> ThroughputPlan:
    """Return the best plan and bound of these loads; raise `InfeasibleError` if there is no plan."""
    _refuse_hopeless(workload, loads)
    found = best_split(loads, effort)
    if not found.parts:
        _refuse(workload, loads, found)
    stages = _stages(workload, loads, found)
    load_s = max(stage.load_s for stage in stages)
    bound_s = load_s if found.is_over else min(found.bound_s, load_s)
    return ThroughputPlan(
        stages, load_s, bound_s, found.downsets, found.pairs, _method(found, effort)
    )


def _stages(workload: Workload, loads: AdditiveLoads, found: Split) -> tuple[LoadedStage, ...]:
    """Return the stages from first to last, with loads as `evaluate.py` defines them."""
    stages: list[LoadedStage] = []
    behind = 0
    for part in reversed(found.parts):
        move = loads.moves[part.move]
        behind += move.replicas
        explicit = _explicit(workload, part.layers, move)
        names = tuple(option.name for _, option in explicit.options)
        stages.append(
            LoadedStage(
                part.layers, names, move.pool, move.devices, move.replicas,
                -(-behind // move.replicas), load_of(workload, explicit),
            )
        )  # fmt: skip
    return tuple(stages[::-1])


def _explicit(workload: Workload, layers: tuple[int, ...], move: Move) -> Explicit:
    way = (move.pool, move.devices)
    chosen = []
    for layer in layers:
        options = [option for option in workload.layers[layer].options if option.way == way]
        chosen.append((layer, min(options, key=lambda option: option.seconds)))
    return Explicit(tuple(chosen), move.replicas)


def _method(found: Split, effort: Effort) -> str:
    """Say how plan and bound were found."""
    if found.downsets is None:
        return (
            "there are too many downsets to enumerate: the plan is the best of those near its order, "
            "the bound is a relaxation's"
        )
    if found.is_over:
        return f"all {found.downsets:,} downsets of the graph"
    return (
        f"a relaxation on all {found.downsets:,} downsets gives the bound; the effort ended before the "
        "plan was proved"
    )


def _refuse_hopeless(workload: Workload, loads: AdditiveLoads) -> None:
    """Raise `InfeasibleError` that names a group of layers that no device can run."""
    fits = (loads.missing == 0) & (loads.nbytes <= loads.room[:, None])
    alone = np.flatnonzero(~fits.any(axis=0)) if len(loads.moves) else np.arange(len(loads.order))
    if len(alone) == len(loads.order):
        raise InfeasibleError(
            "no range of layers fits into any pool; raise a pool's memory or count"
        )
    if not len(alone):
        return
    group = int(alone[0])
    names = " and ".join(repr(workload.layers[layer].name) for layer in loads.members[group][:2])
    more = len(loads.members[group]) - 2
    who = names + (f" and {more} more, which share a stage" if more > 0 else "")
    offered = loads.missing[:, group] == 0
    if not offered.any():
        raise InfeasibleError(
            f"no pool with devices runs {who}; give a pool that can, or an option on one that there is"
        )
    least = loads.nbytes[offered, group].min()
    raise InfeasibleError(
        f"{who} needs {least:.6g} bytes, more than any device that runs it has; raise the memory, or "
        "split the layer"
    )


def _refuse(workload: Workload, loads: AdditiveLoads, found: Split) -> None:
    """Raise `InfeasibleError` for a search without a plan."""
    pools = ", ".join(f"{p.name}: {p.count} x {p.memory_nbytes:.4g} bytes" for p in workload.pools)
    needed = float(loads.nbytes.min(axis=0).sum())
    if found.is_over:
        raise InfeasibleError(
            f"no plan of stages fits into {pools}; the layers take at least {needed:.4g} bytes. Give "
            "more devices or memory"
        )
    raise InfeasibleError(
        f"no plan of stages was found that fits into {pools}, where the layers take at least "
        f"{needed:.4g} bytes; whether there is one is not known. Give more seconds, devices or memory"
    )
