"""The module that `autopar.parallelize` returns for a pipeline; `train_step` executes its schedule."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from autopar.errors import InputError, RankFailedError
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.request.batch import Batch
from autopar.request.weights import OF_THE_MODEL, Weights
from autopar.runtime import agreement
from autopar.runtime.autocast import check_autocast, no_autocast
from autopar.runtime.axes import Axes
from autopar.runtime.batch_agreement import BatchAgreement
from autopar.runtime.checkpointable import CheckpointableModule, refuse_without_gradients
from autopar.runtime.clip import shrink
from autopar.runtime.expected import Expected
from autopar.runtime.extra import extra_states
from autopar.runtime.failures import refuse_broken, report_broken
from autopar.runtime.inference import normal_tensors, outside_inference
from autopar.runtime.leaves import Leaves
from autopar.runtime.loop_record import LoopRecord
from autopar.runtime.module import Namespace
from autopar.runtime.one_thread import in_one_thread
from autopar.runtime.only import refuse_other_gradients
from autopar.runtime.parameter_reduction import Number
from autopar.runtime.pipeline.buffers import Buffers
from autopar.runtime.pipeline.built import Built, Compiles
from autopar.runtime.pipeline.copies import copies
from autopar.runtime.pipeline.directions import Directions
from autopar.runtime.pipeline.engine import Engine, own_engine
from autopar.runtime.pipeline.gradients import Gradients, last_stages
from autopar.runtime.pipeline.links import LinksOf
from autopar.runtime.pipeline.loops import Loops
from autopar.runtime.pipeline.losses import on_all_ranks
from autopar.runtime.pipeline.norm import norm_over_stages
from autopar.runtime.pipeline.numbers_of_stages import numbers_of_all_stages
from autopar.runtime.pipeline.ownership import Ownership
from autopar.runtime.pipeline.refusals import Refusals
from autopar.runtime.pipeline.stage import Stage, Tensors
from autopar.runtime.pipeline.stage_tensor import Marks
from autopar.runtime.pipeline.step import Step
from autopar.runtime.pipeline.unavailable import WithoutStages
from autopar.runtime.programs import Numbers, in_parts, samples_in
from autopar.runtime.random import Seeds
from autopar.runtime.sharded_parameter import refuse_other_data
from autopar.runtime.surroundings import Kept, Surroundings
from autopar.runtime.updates import check_before_steps
from autopar.runtime.weights.fill import fill
from autopar.runtime.weights.match import Dialect
from autopar.runtime.world import worker_mesh


class Pipelined(WithoutStages, CheckpointableModule):
    """Trained with ``loss = parallel.train_step(**batch); optimizer.step(); parallel.zero_grad()``.

    Each rank holds the parameters of its own stages, as DTensors under the user's names.  `plan` is
    the plan and `sources` the emitted code.
    """

    TRAINS_BY = "train_step(**batch)"
    IN_STAGES = True

    def __init__(
        self,
        model: nn.Module,
        built: Built,
        compiler: Compiles,
        *,
        example: Batch,
        aliases: tuple[tuple[str, str], ...] = (),
        weights: Weights = OF_THE_MODEL,
    ) -> None:
        super().__init__()
        meshes = [worker_mesh(worker.ranks, worker.mesh) for worker in built.plan.workers]
        self.device_mesh = meshes[built.worker]
        self._device = self.device_mesh.device_type
        self.axes = Axes.of(self.device_mesh)
        self._first, self._compiler = built, compiler
        self._expected, self._numbers = Expected(example), Numbers(example)
        self._loop_record = loop = LoopRecord(built.worker)
        self._agreement = BatchAgreement(compiler, loop)
        seed = int(agreement.from_first_rank(lambda: (str(torch.initial_seed()),))[0])
        self.seeds = Seeds(seed)
        self._tree = Namespace(axes=self.axes)
        self._owned = Ownership(built, self.device_mesh)
        self._loops = Loops()
        self._slots = list(self._owned.slots(model, Marks(self._loops)))
        self._targets = self._owned.targets(model, self._slots)
        self._persistent, self._aliases = frozenset(model.state_dict()), aliases
        self._dialect = Dialect.of(model, aliases)
        self._register(model)
        self._attributes.follow(compiler, model)
        state = self._attributes.state(gradients=True)
        self._of_batch = Kept({((state, example.signature), ()): built})
        self._surroundings = Surroundings()
        self._finish: Callable[[Built], None] = lambda _: None
        fill(
            model, self._targets, self._dialect, persistent=self._persistent,
            weights=weights, device_mesh=self.device_mesh, seed=seed,
        )  # fmt: skip
        self._leaves = Leaves(self._slots, self.axes, self._tree)
        self._trained = {slot.name: slot.parameter.requires_grad for slot in self._slots}
        self._broken, self._refusals = "", Refusals(any(self._trained.values()))
        check_before_steps(self, (slot.parameter for slot in self._slots), self._before_update)
        last = last_stages(built.order, built.parameters)
        shares = max((each.plan.buckets for each in built.programs.values()), default=1)
        self._gradients = Gradients(self._slots, last, self.axes, shares)
        self._written = Buffers(self._targets)
        directions, layouts = Directions.make(self._device), self._owned.layouts()
        self._links = LinksOf(directions)
        self._copies = copies(self._slots, layouts, built.worker, directions)

    @property
    def plan(self) -> PipelinePlan:
        """The plan of the first pipeline."""
        return self._first.plan

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Yield the parameters of this rank's stages, for an optimizer.

        Optimizers refuse an empty list: a rank that trains nothing yields one empty parameter last.
        """
        trained = False
        for parameter in super().parameters(recurse):
            trained |= parameter.requires_grad
            yield parameter
        if not trained:
            yield self.nothing

    @functools.cached_property
    def nothing(self) -> nn.Parameter:
        """The empty parameter of a rank that trains no other."""
        return nn.Parameter(torch.empty(0, device=self._device))

    @property
    def sources(self) -> dict[int, str]:
        """The emitted Python of this rank's stages."""
        return {stage: program.source for stage, program in self._first.programs.items()}

    @property
    def _precision(self) -> str:
        return self.plan.stages[0].plan.precision

    @property
    def _is_first(self) -> bool:
        """Whether this is its worker's first rank, which contributes for it to sums over workers."""
        return dist.get_rank() == self.plan.workers[self._first.worker].ranks[0]

    def _register(self, model: nn.Module) -> None:
        tensors = {name: t.tensor for name, t in self._targets.items() if t.is_here}  # type: ignore[attr-defined]
        for name, tensor in tensors.items():
            if not isinstance(tensor, nn.Parameter):
                self._tree.put(name, tensor)
        self._hold(model, tensors)

    def train_step(
        self, *, scaler: torch.amp.GradScaler | None = None, **batch: Any
    ) -> torch.Tensor:
        """Run forward and backward of a batch by the schedule, and synchronise the gradients.

        Return the loss of the whole batch, equal on all ranks; a `scaler` scales gradients alone.
        """
        if "microbatches" in batch and "microbatches" not in self._expected.example.tensors:
            raise InputError(
                "The number of microbatches of a pipeline is fixed when it is built: pass "
                "pipeline=autopar.Pipeline(..., microbatches=...) to autopar.parallelize."
            )
        return self.step_on(own_engine, batch, scaler)

    @in_one_thread
    def step_on(
        self, engine: Engine, batch: Mapping[str, Any], scaler: torch.amp.GradScaler | None = None
    ) -> torch.Tensor:
        """Run `train_step` with the actions executed by `engine`."""
        refuse_without_gradients(self)
        refuse_broken(self._broken)
        check_autocast(self._device, self._precision)
        self._begin_call("a training step")
        self._agree(batch, partial(self.refuse_what_is_not_there, batch))
        built = self._for_batch(batch, training=True)
        run = engine(built)
        with self.whole_or_ended():
            for copy in self._copies:
                copy.begin()
            step = self._step(built, batch, self._scale(scaler))
            with no_autocast(self._device):
                run(step)
            self._gradients.finish()
            for copy in self._copies:
                copy.add_up(built.trained)
            return self._everywhere(built, step.loss)

    def refuse_what_is_not_there(self, batch: Mapping[str, Any]) -> None:
        """Raise `InputError` if a step would not compute the gradients that the user requests."""
        refuse_other_gradients(Batch.of((), batch).tensors, self._slots, self._trained)

    @contextmanager
    def whole_or_ended(self) -> Iterator[None]:
        """Mark the pipeline as broken if the body fails: with transfers pending no step may follow."""
        try:
            yield
        except BaseException as error:
            self._broken = f"{type(error).__name__}: {error}"
            report_broken(self._broken)
            raise

    @in_one_thread
    def forward(self, *args: Any, **batch: Any) -> torch.Tensor:
        """Return the loss without gradients, equal on all ranks, for evaluation."""
        if args:
            raise InputError("Pass a pipeline's batch as keyword arguments.")
        if torch.is_grad_enabled() and self.training:
            raise InputError(
                f"This model runs as {len(self._first.stages.graphs)} stages of a pipeline, "
                "whose backward cannot wait for loss.backward(). Call "
                f"parallel.{self.TRAINS_BY}, which runs both; or parallel.eval() first; or pass "
                "pipeline=1 to autopar.parallelize."
            )
        refuse_broken(self._broken)
        check_autocast(self._device, self._precision)
        self._begin_call("an evaluation")
        self._agree(batch)
        built = self._for_batch(batch, training=self.training)
        kinds = ("F", "SEND_F", "RECV_F")
        actions = [a for a in built.plan.schedule.workers[built.worker] if a.kind in kinds]
        with self.whole_or_ended(), torch.no_grad(), no_autocast(self._device):
            step = self._step(built, batch, None)
            step.run(actions)
            return self._everywhere(built, step.loss)

    def _before_update(self) -> None:
        """Before an optimizer steps, refuse the gradients of a failed step."""
        refuse_broken(self._broken)

    def _step(self, built: Built, batch: Mapping[str, Any], scale: torch.Tensor | None) -> Step:
        with normal_tensors():
            self._leaves.refresh()
        return Step(
            self._stages(built),
            self._links(built),
            self._microbatches(built, batch).__getitem__,
            seed=self.seeds.next() if built.is_random else 0,
            scale=scale,
            filling=self._gradients.filling,
            update=self._update_buffers,
        )

    def _stages(self, built: Built) -> dict[int, Stage]:
        splits = built.plan.schedule.splits_backward
        return {
            number: Stage(program, self._tree, self._leaves, splits)
            for number, program in built.programs.items()
        }

    def _microbatches(
        self, built: Built, batch: Mapping[str, Any]
    ) -> list[dict[str, torch.Tensor]]:
        """Return the inputs of this rank's stages for every microbatch of a batch."""
        denominators = self._denominators(built, batch)
        parts = in_parts(batch, built.plan.microbatches)
        return [self._inputs(built, part) | denominators for part in parts]

    def _for_batch(self, batch: Mapping[str, Any], training: bool) -> Built:
        self._expected.check((), batch)
        samples_in(batch)
        state = self._attributes.state(training)
        of, makes, asked = self._of_batch, self._compiler, (state, Batch.of((), batch).signature)
        key = self._surroundings.key(
            asked, makes.outside(), of, self._first, lambda: of.of_graph(makes.captured(batch, state))
        )  # fmt: skip
        if key not in self._of_batch:
            self._numbers.see(Batch.of((), batch))
            with normal_tensors(), self._expected.explained(Batch.of((), batch)):
                made = self._compiler.pipeline_for(batch, state)
            self._finish(made)
            self._of_batch.keep(key, made, self._first)
        built: Built = self._of_batch.use(key)
        in_parts(batch, built.plan.microbatches)  # an error in the step would break the pipeline
        self._written.used_by(built)
        return built

    def _agree(self, batch: Mapping[str, Any], *checks: Callable[[], None]) -> None:
        """Check that all ranks have the same batch and the same model state.

        Raise on all ranks what `checks` raise on one of them.
        """
        self._loops.forget()
        self._refusals.collect(*checks, partial(refuse_other_data, self._slots))
        stands = self._attributes.state(torch.is_grad_enabled())
        try:
            self._agreement.check((), batch, 0, stands, local=False, refusals=self._refusals)
        except RankFailedError as error:
            self._broken = str(error)
            raise

    def note_refused_update(self, error: InputError) -> None:
        """Note that an optimizer was refused to step; the next step compares this with other ranks."""
        self._refusals.note_update(error)

    def _numbers_of(self, function: Callable[[torch.Tensor], Any]) -> list[Number]:
        once = [(s.name, s.parameter) for s in self._slots if self._owned.is_owner(s.name)]
        with self._loops.collected():
            return numbers_of_all_stages(function, once, self._is_first)

    def _inputs(self, built: Built, part: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the inputs of this rank's stages for one microbatch."""
        tensors = Batch.of((), part).tensors
        return {
            key: program.entered(tensors, key, self._device)
            for program in built.programs.values()
            for key in program.inputs
            if not key.startswith("denominator_")
        }

    @torch.no_grad()
    def _denominators(self, built: Built, batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        if built.counts is None:
            return {}
        tensors = Batch.of((), batch).tensors
        counts = built.counts
        inputs = [counts.entered(tensors, key, self._device) for key in counts.inputs]
        results = counts.run(self._tree, inputs)
        return {key: results[name] for key, name in counts.graph.outputs}

    @torch.no_grad()
    def _update_buffers(self, stage: Stage, results: Tensors) -> None:
        for name, value in stage.program.graph.mutations:
            self._targets[name].tensor.copy_(results[value])

    def _scale(self, scaler: torch.amp.GradScaler | None) -> torch.Tensor | None:
        if scaler is None or not scaler.is_enabled():
            return None
        one: torch.Tensor = scaler.scale(torch.ones((), device=self._device))
        return one

    def _everywhere(
        self, built: Built, own: torch.Tensor | None, shape: tuple[int, ...] = ()
    ) -> torch.Tensor:
        return on_all_ranks(built, own if self._is_first else None, shape, self._device)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Apply `torch.compile`, with these arguments, to the emitted blocks of this rank's stages.

        Each becomes one graph, whose backward computes all of its gradients: a schedule that splits the
        backward (zero bubble) computes those of weights with those of inputs.
        """
        self._finish = lambda built: built.compile(*args, **kwargs)
        for built in self._of_batch.values():
            self._finish(built)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients."""
        self._gradients.zero_grad()

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scale all gradients so that their norm over the whole model is at most `max_norm`.

        Returns the norm before scaling, equal on all ranks.  Shared parameters count once.
        """
        self._loop_record.note_clip(max_norm, norm_type)
        mesh = self.plan.workers[self._first.worker].mesh
        once = [slot for slot in self._slots if self._owned.is_owner(slot.name)]
        norm = norm_over_stages(once, mesh, self.axes, self._first, norm_type, self._is_first)
        shrink(self._slots, norm, max_norm)
        return norm

    def save(self, path: str | Path, *args: Any, **kwargs: Any) -> None:
        """Write a checkpoint directory that any mesh, preset or plain PyTorch model can read."""
        self._written.share(self._first)
        super().save(path, *args, **kwargs)

    @property
    def elsewhere(self) -> frozenset[str]:
        """This rank's parameters that another worker writes to checkpoints."""
        return frozenset(s.name for s in self._slots if not self._owned.is_owner(s.name))

    @outside_inference
    def full_state_dict(self) -> dict[str, Any]:
        """Return the user's state dict: full plain tensors on every rank, for the user's model."""
        self._begin_call("full_state_dict", meet=True)
        self._written.share(self._first)
        wholes = {n: t.whole() for n, t in self._targets.items() if n in self._persistent}
        for other, name in self._aliases:
            if other in self._persistent:
                wholes[other] = wholes[name]
        return wholes | extra_states(self._root)

    def __repr__(self) -> str:
        return f"Pipelined({self.plan.model} on mesh ({self.plan.mesh}), plan {self.plan.digest})"
