"""Compiles a model into pipeline stages, for batches of varying shape.

A `PipelineCompiler` holds the state that is common to all batches.  A `Compiler` captures the graphs.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch import nn

from autopar.capture.saved import saved
from autopar.compile.compiler import Compiler
from autopar.compile.microbatch import part
from autopar.cost.parameters import Storage
from autopar.errors import ConstraintError, InputError
from autopar.ir.graph import Graph
from autopar.ir.split import Stages, split
from autopar.pipeline.build.forced import compile_forced
from autopar.pipeline.build.pipeline_spec import PipelineSpec
from autopar.pipeline.build.staged import Staged, compile_stages
from autopar.pipeline.build.transfer import transferred
from autopar.pipeline.schedules import Schedule
from autopar.pipeline.schedules.action import forward
from autopar.pipeline.schedules.lower import without_transfers
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.request.model_state import ModelState, Outside
from autopar.runtime import agreement
from autopar.runtime.pipeline.built import Built
from autopar.runtime.program import Program, load
from autopar.runtime.programs import in_parts, samples_in
from autopar.sharding.compile import compile_graph
from autopar.sharding.in_flight import refuse_no_blocks
from autopar.sharding.narrow import applies
from autopar.sharding.sharding_problem import Settings
from autopar.utils.cache import keep
from autopar.utils.messages import argument

COUNTING = Settings(padding=(), pads_batch=False)


class PipelineCompiler:
    """Compiles pipelines for batches of different shapes.

    The first pipeline fixes how parameters are stored; later ones keep its workers and storage.
    """

    def __init__(
        self, compiler: Compiler, wanted: PipelineSpec, given: Staged | None = None
    ) -> None:
        """`given` is the pipeline if it is compiled already."""
        self._compiler, self._wanted, self._given = compiler, wanted, given
        self._mesh, self._hardware = compiler.mesh, compiler.hardware
        self._most: int | None = None
        self._first: Staged | None = None
        self._graph: Graph | None = None

    @property
    def _settings(self) -> Settings:
        """The settings with measured times, which only the deciding rank needs."""
        return self._compiler.settings(None)

    def decide(self, batch: Mapping[str, Any]) -> tuple[Staged, Graph | None]:
        """Compile the pipeline on this process; also return the graph of the denominators, if any."""
        graph, counts = self._graphs(batch, self._wanted_for(batch))
        self._refuse_unheard(graph)
        made = self._given or self._compiled(graph)
        made.plan.check(made.stages)
        self._first, self._graph = made, graph
        return made, counts

    def _compiled(self, graph: Graph) -> Staged:
        """Compile the requested pipeline, with its estimated step time.

        Raise `ConstraintError` if, with a preset, an axis of a stage's mesh splits no work.
        """
        settings, allowed = self._settings, self._compiler.options.planning.allow_undivided
        refuse_no_blocks(graph, settings)
        made = compile_forced(graph, self._mesh, self._hardware, settings, self._wanted)
        idle = [each for each in made.plan.stages if each.plan.idle]
        if settings.preset and idle and not allowed:
            raise ConstraintError(
                f"Stage {idle[0].stage} does not follow the preset {settings.preset!r}: "
                f"{idle[0].plan.idle}. Pass a batch whose microbatches divide, another shape of "
                f"the stages' meshes, or {argument('allow_undivided', True)}."
            )
        return made

    def pipeline_for(self, batch: Mapping[str, Any], state: ModelState) -> Built:
        """Build the pipeline of a batch on every rank.  Collective: rank 0 decides."""
        with self._compiler.standing(state):
            return self._pipeline_for(batch, state.gradients)

    def follow(self, tree: nn.Module, model: nn.Module, compared: Container[int]) -> None:
        """Call `Compiler.follow`."""
        self._compiler.follow(tree, model, compared)

    def outside(self) -> Outside:
        """Return values that forward or the loss may read besides weights, and that have changed."""
        return self._compiler.outside()

    def captured(self, batch: Mapping[str, Any], state: ModelState) -> str:
        """Return the value of `Built.captured` for this batch, without communication."""
        with self._compiler.standing(state):
            wanted = self._wanted_for(batch) if state.gradients else None
            return _digest(*self._graphs(batch, wanted))

    def captured_digest(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], state: ModelState
    ) -> str:
        """Capture a batch on this rank and return the digest of its graph; `args` must be empty."""
        return self.captured(kwargs, state)

    def first(self, batch: Mapping[str, Any]) -> Built:
        """Build the pipeline of the example inputs, with the model in its initial state."""
        return self._pipeline_for(batch, training=True)

    def _pipeline_for(self, batch: Mapping[str, Any], training: bool) -> Built:
        wanted = self._wanted_for(batch) if training else None
        graph, counts = self._graphs(batch, wanted)
        agreement.assert_same_on_all_ranks(
            "the model, the mesh or the options",
            f"{graph.digest} {self._mesh} {self._wanted} {self._compiler.asked(None)}",
            agreement.SAME_MODEL,
        )
        texts = agreement.from_first_rank(lambda: self._texts(batch, graph, counts, wanted))
        plan = PipelinePlan.from_json(texts[0], "the plan of rank 0")
        stages = split(graph, plan.cuts)
        if training:
            plan.check(stages)
        if self._first is None:
            self._first, self._graph = Staged(plan, stages, {}), graph
        return replace(
            self._built(plan, stages, counts, texts[1:]), captured=_digest(graph, counts)
        )

    def _wanted_for(self, batch: Mapping[str, Any]) -> PipelineSpec:
        """Return the specification for a batch.

        It has the requested number of microbatches if that divides the batch, otherwise microbatches
        no larger than those of the first batch.
        """
        samples = samples_in(batch) if self._wanted.microbatches > 1 else 1
        if self._most is None:
            self._most = max(1, samples // self._wanted.microbatches)
            return self._wanted
        return self._wanted.of_batch(samples, self._most)

    def _graphs(
        self, batch: Mapping[str, Any], wanted: PipelineSpec | None
    ) -> tuple[Graph, Graph | None]:
        """Capture a microbatch, and the whole batch's denominators if there are any.

        `wanted` is None for evaluation, which takes the batch as one microbatch.
        """
        training = wanted is not None
        traced = self._compiler.traced(batch, training)
        whole = self._compiler.graph_of(traced, training)
        if whole.loss is None:
            raise InputError(
                f"A pipeline trains on a loss, and {whole.name} returns none for this batch. Pass the "
                f"targets with the batch, or {argument('loss')}."
            )
        if whole.outputs:
            raise InputError(
                f"{argument('outputs')} is not available for pipelines yet: they return the loss."
            )
        pieces = 1 if wanted is None else wanted.microbatches
        if pieces == 1:
            return whole, None
        piece = in_parts(batch, pieces)[0]
        found = self._compiler.traced(piece, training)
        small = self._compiler.graph_of(found, training, whole=traced)
        parted = part(whole, small, pieces)
        return parted.microbatch, parted.counts

    def _refuse_unheard(self, graph: Graph) -> None:
        for constraint in self._settings.constraints:
            if not constraint.optional and not applies(constraint, graph):
                kept = saved(graph, self._hardware.device.kind)
                compile_graph(graph, self._mesh, self._hardware, self._settings, kept)

    def _texts(
        self,
        batch: Mapping[str, Any],
        graph: Graph,
        counts: Graph | None,
        wanted: PipelineSpec | None,
    ) -> tuple[str, ...]:
        made = self._again(graph, wanted) if self._first else self.decide(batch)[0]
        texts = [made.plan.to_json()]
        texts += [made.sources[each.stage, each.worker] for each in made.plan.stages]
        if counts is not None:
            for worker in made.plan.workers:
                kept = saved(counts, self._hardware.device.kind)
                found = compile_graph(counts, worker.mesh, self._hardware, COUNTING, kept)
                texts += [found.plan.to_json(), found.source]
        return tuple(texts)

    def _again(self, graph: Graph, wanted: PipelineSpec | None) -> Staged:
        """Compile for other shapes or for evaluation, with the first pipeline's workers and storage."""
        assert self._first is not None and self._graph is not None
        plan = self._first.plan
        rests = {
            (each.worker, p.name): Storage(p.stored, p.leaf, False)
            for each in plan.stages
            for p in each.plan.parameters
        }
        cuts = transferred(plan.cuts, self._graph, graph)
        if wanted is None:
            schedule = evaluation(plan.schedule)
        else:
            schedule = plan.schedule if wanted == self._wanted else wanted.build()
        return compile_stages(
            graph, split(graph, cuts), cuts, self._mesh, self._hardware,
            replace(self._settings, first=False), plan.workers, without_transfers(schedule), rests,
        )  # fmt: skip

    def _built(
        self, plan: PipelinePlan, stages: Stages, counts: Graph | None, texts: Sequence[str]
    ) -> Built:
        worker = plan.worker_of(dist.get_rank())
        programs = {
            each.stage: _loaded(each.plan, stages.graphs[each.stage], source, f"_stage{each.stage}")
            for each, source in zip(plan.stages, texts, strict=False)
            if each.worker == worker
        }
        counting = None
        if counts is not None:
            text, source = texts[len(plan.stages) + 2 * worker :][:2]
            counting = _loaded(
                Plan.from_json(text, "the plan of rank 0"), counts, source, "_counts"
            )
        return Built(plan, stages, programs, counting)


def evaluation(schedule: Schedule) -> Schedule:
    """Return the schedule of one forward pass through all stages, each on its first holder."""
    home = [holders[0] for holders in schedule.holders]
    lists = (
        tuple(forward(stage, 0) for stage, worker in enumerate(home) if worker == number)
        for number in range(len(schedule.workers))
    )
    return Schedule("evaluation", schedule.stages, 1, tuple(lists))


def _digest(graph: Graph, counts: Graph | None) -> str:
    return f"{graph.digest} {counts and counts.digest}"


def _loaded(plan: Plan, graph: Graph, source: str, suffix: str) -> Program:
    path = keep(source, f"{graph.name}_{plan.digest}{suffix}.py")
    return load(plan, graph, source, path)
