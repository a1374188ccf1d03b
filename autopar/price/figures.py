"""The figures by which configurations of training are compared."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from autopar.ir.graph import Graph
from autopar.pipeline.build.staged import Staged
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.rules.work import backward_flops, flops
from autopar.sharding.sharding_problem import Compilation
from cost_models.hardware import Hardware

MOST_BACKWARD = 2.0
"""Operations of a backward that count, relative to its forward: what kernels compute again does not."""


@dataclass(frozen=True)
class StepFigures:
    """A predicted step, on all devices together.

    - `step_s`: seconds of the step.  `peak_nbytes`: bytes of the fullest device.
    - `bubble`: the share of the step in which a device is idle because of the pipeline, on average.
    - `mfu`: model FLOPs utilisation (Chowdhery et al. 2022, appendix B): the operations of forward and
      backward, without recomputation, over those that the devices could do at their peak.
    - `tokens_per_s`, `samples_per_s`: of the batch; `tokens_per_s` is None without token ids.
    """

    step_s: float
    peak_nbytes: float
    bubble: float
    mfu: float
    tokens_per_s: float | None
    samples_per_s: float


def figures_of(
    made: Compilation | Staged, hardware: Hardware, samples: int, tokens: int | None
) -> StepFigures:
    """Return the figures of a compiled plan; `samples` and `tokens` are of its batch."""
    plan = made.plan
    step_s = step_of(plan)
    return StepFigures(
        step_s=step_s,
        peak_nbytes=plan.outline.figures["memory", "peak"],
        bubble=bubble_of(plan),
        mfu=_operations(made) / (step_s * _peak(made, hardware)),
        tokens_per_s=None if tokens is None else tokens / step_s,
        samples_per_s=samples / step_s,
    )


def step_of(plan: Plan | PipelinePlan) -> float:
    """Return the predicted seconds of a step."""
    if isinstance(plan, Plan):
        return plan.estimate.step_s
    assert plan.prediction is not None
    return plan.prediction.step_s


def bubble_of(plan: Plan | PipelinePlan) -> float:
    """Return the idle share of a step, on average over the devices; 0 without stages."""
    if isinstance(plan, Plan) or plan.prediction is None:
        return 0.0
    sizes = [worker.mesh.world_size for worker in plan.workers]
    shares = zip(plan.prediction.bubbles, sizes, strict=True)
    return sum(share * size for share, size in shares) / sum(sizes)


def graphs_of(made: Compilation | Staged) -> tuple[Graph, ...]:
    """Return the graph of the batch, or those of a microbatch's stages."""
    return made.stages.graphs if isinstance(made, Staged) else (made.graph,)


def _operations(made: Compilation | Staged) -> float:
    """Return the model's operations of a step."""
    microbatches = made.plan.microbatches if isinstance(made.plan, PipelinePlan) else 1
    return microbatches * sum(map(_of_graph, graphs_of(made)))


def _of_graph(graph: Graph) -> float:
    forward = {node.name: float(flops(node, graph)) for node in graph.nodes}
    return sum(
        forward[node.name] + min(backward_flops(node, graph), MOST_BACKWARD * forward[node.name])
        for node in graph.nodes
    )


def _peak(made: Compilation | Staged, hardware: Hardware) -> float:
    """Return the operations per second of all devices, at the peak of the dtype of most operations."""
    work: Counter[str] = Counter()
    for graph in graphs_of(made):
        for node in graph.nodes:
            if node.outputs:
                work[node.outputs[0].dtype] += flops(node, graph)
    mesh = made.plan.mesh
    sharing = min(mesh.world_size, hardware.devices_per_host)
    peaks = hardware.device_shared_by(sharing).flops_per_s
    dtype = max(work, key=lambda name: work[name])
    return mesh.world_size * peaks.get(dtype, peaks["float32"])
