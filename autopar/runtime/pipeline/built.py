"""A compiled pipeline on this rank: the plan and the programs of its worker's stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch.distributed as dist

from autopar.ir.split import Stages
from autopar.pipeline.schedules import check, lower, stream
from autopar.pipeline.schedules.collectives import completing
from autopar.plans.pipeline_plan import PipelinePlan, edges
from autopar.request.model_state import ModelState
from autopar.runtime.attributes import Follows
from autopar.runtime.batch_agreement import Captures
from autopar.runtime.program import Program


@dataclass(frozen=True, eq=False)
class Built:
    """A pipeline's plan, graphs and programs.

    `programs` are those of this worker's stages, by stage.  `counts` computes the whole batch's loss
    denominators, if there are any.  `captured` is the digest of the graphs before they were cut.
    """

    plan: PipelinePlan
    stages: Stages
    programs: Mapping[int, Program]
    counts: Program | None = None
    captured: str = ""

    @cached_property
    def worker(self) -> int:
        """The worker that this rank belongs to."""
        return self.plan.worker_of(dist.get_rank())

    @property
    def is_random(self) -> bool:
        """Whether any stage, on any rank, draws random numbers."""
        return self.stages.is_random

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Apply `torch.compile` to the emitted blocks of this worker's stages."""
        for program in self.programs.values():
            program.compile(*args, **kwargs)

    def streaming(self, batches: int) -> Built:
        """Return the pipeline with its asynchronous schedule for a stream of `batches` batches."""
        plan, crossing = self.plan, edges(self.stages)
        made = stream(plan.schedule.name, len(plan.workers), batches, plan.microbatches)
        lowered = lower(made, crossing)
        check(lowered, crossing)
        return replace(self, plan=replace(plan, actions=str(lowered)))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """This worker's stages in the order in which their gradients become complete."""
        actions = self.plan.schedule.workers[self.worker]
        return tuple(action.stage for action in completing(actions))

    @cached_property
    def parameters(self) -> Mapping[int, tuple[str, ...]]:
        """The parameters that each stage of this worker reads."""
        return {
            stage: tuple(node.target for node in program.graph.leaves("parameter"))
            for stage, program in self.programs.items()
        }

    @cached_property
    def trained(self) -> frozenset[str]:
        """The parameters that get a gradient in any stage."""
        found: set[str] = set()
        for stage, graph in enumerate(self.stages.graphs):
            back = [c.tensor for c in self.stages.crossings if c.source == stage and c.returns]
            reached = graph.reached_from(back if graph.loss is None else [graph.loss, *back])
            leaves = graph.leaves("parameter")
            found |= {leaf.target for leaf in leaves if leaf.outputs[0].name in reached}
        return frozenset(found)

    @cached_property
    def holders(self) -> Mapping[str, tuple[int, ...]]:
        """The workers whose stages read each parameter."""
        found: dict[str, set[int]] = {}
        for stage, graph in enumerate(self.stages.graphs):
            for node in graph.leaves("parameter"):
                found.setdefault(node.target, set()).update(self.plan.schedule.holders[stage])
        return {name: tuple(sorted(workers)) for name, workers in found.items()}


class Compiles(Captures, Follows, Protocol):
    """Plans and emits pipelines during training; the same calls are made on every rank."""

    def captured(self, batch: Mapping[str, Any], state: ModelState) -> str:
        """Return the digest of a batch's graphs, without communication."""

    def pipeline_for(self, batch: Mapping[str, Any], state: ModelState) -> Built:
        """Return the pipeline for a batch of other shapes, or for the model in another state."""
