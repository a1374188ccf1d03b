"""Plans what is asked for by a profile, and lists what may be asked for."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import nn

from autopar.compile.automatic import samples_of
from autopar.compile.compiler import Compiler
from autopar.compile.pipeline_compiler import PipelineCompiler
from autopar.errors import InfeasibleError, InputError, PlanError
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.pipeline.build.pipeline_spec import PipelineSpec
from autopar.plans.pipeline_plan import PipelinePlan, predicted_step_s
from autopar.plans.plan import Plan
from autopar.request import presets
from autopar.request.meta import without_weights
from autopar.request.options import Options
from autopar.sharding.sharding_problem import device_memory
from autopar.tune.ask import Ask, Used
from autopar.tune.correction import Factors, parts
from autopar.tune.record import Attempt
from cost_models.hardware import Hardware

SCHEDULES = ("1f1b", "zb-h1")
"""Schedules that run on any number of stages of one worker each."""
REPLICATED = "R | I"


@dataclass(frozen=True, eq=False)
class AskPlanner:
    """Plans asks for one model, batch and mesh.

    `first` is the profile that is corrected, and `asked` are the user's options.
    """

    model: nn.Module
    inputs: Any
    mesh: Mesh
    asked: Options
    first: Hardware

    @cached_property
    def graph(self) -> Graph:
        """The captured graph, which no profile changes."""
        bare = Compiler(self._bare, self.mesh, self.first, self.asked)
        return bare.graph(self.inputs)

    @cached_property
    def _bare(self) -> nn.Module:
        return without_weights(self.model, self.asked.precision.compute)

    def plan(self, ask: Ask, hardware: Hardware) -> Plan | PipelinePlan | None:
        """Return the best plan that meets an ask; None if there is none, or if it does not fit."""
        compiler = Compiler(self._bare, self.mesh, hardware, ask.options(self.asked))
        try:
            if ask.stages == 1:
                made: Plan | PipelinePlan = compiler.compile(self.graph).plan
            else:
                spec = PipelineSpec.of(self.mesh, ask.pipeline, samples_of(self.inputs))
                made = PipelineCompiler(compiler, spec).decide(self.inputs)[0].plan
        except (InfeasibleError, InputError, PlanError):
            return None
        limit = self.asked.memory_limit or device_memory(self.mesh, hardware)
        return made if made.outline.figures.get(("memory", "peak"), 0.0) <= limit else None

    def attempts(
        self, hardware: Hardware, factors: Factors, near: Ask, tried: Collection[str]
    ) -> list[Attempt]:
        """Plan every ask, and those that differ from `near` in one type; return the plans by step.

        Each plan is there once, and none whose digest is among those `tried`.
        """
        found: dict[str, Attempt] = {}
        for ask in (*self._usual(), *self._beside(near)):
            made = self.plan(ask, hardware)
            if made is not None and made.digest not in found and made.digest not in tried:
                found[made.digest] = _attempt(ask, made, hardware, factors)
        return sorted(found.values(), key=lambda each: each.predicted_s)

    def _usual(self) -> Iterator[Ask]:
        yield Ask()
        yield from (Ask(name) for name in presets.names())
        if isinstance(self.inputs, Mapping):
            for stages in range(2, self.mesh.world_size + 1):
                if self.mesh.world_size % stages == 0:
                    yield from (Ask(stages=stages, schedule=name) for name in SCHEDULES)

    def _beside(self, near: Ask) -> Iterator[Ask]:
        """Yield asks with one other type, on one axis, of the weights of one name in all layers."""
        if near.stages > 1:
            return
        dims = {
            re.sub(r"(?<=\.)\d+(?=\.)", "*", node.target): len(node.outputs[0].shape)
            for node in self.graph.leaves("parameter")
        }
        for pattern, rank in dims.items():
            for axis in self.mesh.names if rank > 1 else ():
                for types in (REPLICATED, *(f"S({dim})" for dim in range(rank))):
                    yield near.but(Used(pattern, axis, types))


def _attempt(ask: Ask, plan: Plan | PipelinePlan, hardware: Hardware, factors: Factors) -> Attempt:
    found = Attempt(ask, plan.digest, predicted_step_s(plan), factors.values)
    if isinstance(plan, PipelinePlan):
        return found
    compute, intra, inter = (
        part / factor for part, factor in zip(parts(plan, hardware), factors.values, strict=True)
    )
    return replace(found, parts=(compute, intra, inter))
