"""Cost of parameter copies: workers that hold a copy sum their gradients once per step."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

from autopar.ir.graph import ITEMSIZE, Graph
from autopar.ir.split import Stages
from autopar.pipeline.build.borders import link_of, name_of, tiles
from autopar.plans.decisions import master_dtype
from autopar.plans.pipeline_data import Copied
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from cost_models.hardware import Hardware


def copied(plan: PipelinePlan, stages: Stages, hardware: Hardware) -> tuple[Copied, ...]:
    """Return the costs of tied weights, and of stages that several workers hold.

    Every worker sends its gradient to each of the others and receives theirs, in both directions at
    the same time, one parameter after the other.  If a worker reads a parameter in several stages, the
    first one has the cost.
    """
    found: defaultdict[tuple[int, int, int], float] = defaultdict(float)
    for name, holders in _holders(plan, stages).items():
        for worker, stage in holders.items():
            nbytes = _gradient_nbytes(plan.of[stage, worker], stages.graphs[stage], name)
            for other in holders:
                if other != worker:
                    link = link_of(hardware, plan.workers[worker], plan.workers[other])
                    sent_s = link.sending(nbytes, len(plan.workers[worker].ranks))
                    found[stage, worker, other] += link.latency_s + sent_s
    workers = plan.workers
    return tuple(
        Copied(stage, one, two, name_of(hardware, workers[one], workers[two]), seconds)
        for (stage, one, two), seconds in found.items()
    )


def _holders(plan: PipelinePlan, stages: Stages) -> Mapping[str, Mapping[int, int]]:
    """Return by trained parameter the workers that hold it, each with its first stage that reads it."""
    found: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for each in plan.stages:
        for node in stages.graphs[each.stage].leaves("parameter"):
            if node.outputs[0].differentiable:
                found[node.target].setdefault(each.worker, each.stage)
    return found


def _gradient_nbytes(plan: Plan, graph: Graph, name: str) -> float:
    """Return the bytes of the gradient of one rank's shard at rest."""
    entry = plan.parameter[name]
    tensor = next(n.outputs[0] for n in graph.leaves("parameter") if n.target == name)
    wide = master_dtype(tensor.name, graph, plan.precision)
    itemsize = tensor.itemsize if wide is None else ITEMSIZE[wide]
    return math.prod(tensor.shape) * itemsize / tiles(entry.stored, plan.mesh)
