"""Captures a model and compiles it into plans and programs, for batches of varying shape.

A `Compiler` holds the state that is common to all batches: the model, the options, the first plan and
the programs made so far.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autopar.capture import ExampleInputs, Traced, finished, traced
from autopar.capture.held_values import HeldValues
from autopar.capture.outside import OutsideValues
from autopar.capture.saved import saved
from autopar.compile.microbatch import Parted, part
from autopar.compile.outputs import with_outputs
from autopar.cost.timed import times_for
from autopar.errors import (
    ConstraintError,
    InfeasibleError,
    InputError,
    PlacementError,
    SourceError,
)
from autopar.ir.graph import Graph, Saved
from autopar.ir.mesh import Mesh
from autopar.ir.placement import Sharding
from autopar.plans.plan import Plan
from autopar.plans.record import Padding
from autopar.request import presets
from autopar.request.batch import mapped
from autopar.request.constraint_file import from_file
from autopar.request.constraints import Constraint, from_user
from autopar.request.model_state import ModelState, Outside
from autopar.request.options import Options
from autopar.rules import batch_forms
from autopar.runtime import agreement
from autopar.runtime.program import Program, load
from autopar.runtime.surroundings import Kept
from autopar.sharding.asked import preset_constraints, storage_of
from autopar.sharding.compile import arriving, batch_form, compile_graph, frontier
from autopar.sharding.compressed_axes import check_axes, check_compressed
from autopar.sharding.divided import check_divided, check_local
from autopar.sharding.in_flight import InFlightPlanner
from autopar.sharding.padding import padded
from autopar.sharding.sharding_problem import Compilation, Settings, batch_inputs, device_memory
from autopar.utils.cache import keep
from autopar.utils.io import text_of
from autopar.utils.progress import Watch, unwatched
from cost_models.hardware import Hardware
from cost_models.measured import Times


def captured(
    model: nn.Module,
    inputs: ExampleInputs,
    options: Options,
    training: bool = True,
    *,
    keeps_modes: bool = False,
    needs_loss: bool | None = None,
) -> Graph:
    """Capture the forward pass, with the requested outputs."""
    found = _traced(model, inputs, options, training, keeps_modes, needs_loss)
    return _finished(found, model, options, training)


def _traced(
    model: nn.Module,
    inputs: ExampleInputs,
    options: Options,
    training: bool,
    keeps_modes: bool,
    needs_loss: bool | None,
) -> Traced:
    return traced(
        model,
        _cast(inputs, options.precision.compute),
        loss=options.loss,
        train=training,
        autocast=options.precision.autocast,
        keeps_modes=keeps_modes,
        needs_loss=needs_loss,
    )


def _finished(
    found: Traced, model: nn.Module, options: Options, training: bool, whole: Traced | None = None
) -> Graph:
    graph = finished(found, whole)
    if not training:
        # Evaluation communicates the same tensors; I and R types depend on which have gradients.
        frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
        graph = graph.with_gradients(frozen)
    return with_outputs(graph, options.batches.outputs)


class Compiler:
    """Compiles batches of different shapes for one model, mesh, hardware profile and set of options.

    The first program fixes how parameters are stored and how the batch is sharded; later programs
    follow it.
    """

    def __init__(self, model: nn.Module, mesh: Mesh, hardware: Hardware, options: Options) -> None:
        self._model, self.mesh, self.hardware, self.options = model, mesh, hardware, options
        self._first: Plan | None = None
        self._batch: Sharding | None = None
        self._state: ModelState | None = None
        self._programs = Kept()
        self._outside = OutsideValues(model, options.loss)

    def follow(self, tree: nn.Module, model: nn.Module, compared: Container[int]) -> None:
        """Compare, from now on, the values that modules of the parallel model hold; see `Follows`."""
        self._outside.follow(HeldValues(tree, model, self._model, compared))

    def outside(self) -> Outside:
        """Return values that forward or the loss may read besides weights, and that have changed."""
        return self._outside.differences()

    def captured_digest(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], state: ModelState
    ) -> str:
        """Capture a batch on this rank and return the digest of its graph."""
        with self.standing(state):
            return self.graph(kwargs or args, state.gradients).digest

    def known_program(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], state: ModelState
    ) -> Program | None:
        """Return the cached program of a batch, or None.  Does not communicate with other ranks."""
        with self.standing(state):
            return self._known(self.graph(kwargs or args, state.gradients))

    def known_programs(
        self,
        whole: Mapping[str, Any],
        microbatch: Mapping[str, Any],
        pieces: int,
        state: ModelState,
    ) -> tuple[Program | None, Program] | None:
        """Return the programs of `for_microbatches` if all needed are cached; no communication."""
        parted = self._parted(whole, microbatch, pieces, state)
        counts = None if parted.counts is None else self._known(parted.counts)
        program = self._known(parted.microbatch)
        if program is None or (counts is None and parted.counts is not None):
            return None
        return counts, program

    def _known(self, graph: Graph) -> Program | None:
        return self._programs.get((graph.digest, graph.returns))

    def on(self, mesh: Mesh) -> Compiler:
        """Return a compiler with the same model, hardware and options for another mesh."""
        return Compiler(self._model, mesh, self.hardware, self.options)

    def with_options(self, options: Options) -> Compiler:
        """Return a compiler with the same model, mesh and hardware but other options."""
        return Compiler(self._model, self.mesh, self.hardware, options)

    def graph(self, inputs: ExampleInputs, training: bool = True) -> Graph:
        """Capture the forward pass."""
        return self.graph_of(self.traced(inputs, training), training)

    def traced(self, inputs: ExampleInputs, training: bool = True) -> Traced:
        """Trace the model in its current state; `graph_of` turns the trace into a graph."""
        state = self._state
        if state is None:
            return _traced(self._model, inputs, self.options, training, False, None)
        needs_loss = training and state.training
        with self._outside.put_on(), state.put_on(self._model):
            return _traced(self._model, inputs, self.options, training, True, needs_loss)

    def graph_of(
        self, found: Traced, training: bool = True, *, whole: Traced | None = None
    ) -> Graph:
        """Return the graph of a trace.

        For the trace of a part of a batch, `whole` is the trace of the whole batch, whose constants
        the graph takes over.
        """
        return _finished(found, self._model, self.options, training, whole)

    @contextmanager
    def standing(self, state: ModelState) -> Iterator[None]:
        """Within the context, graphs are captured of the model in this state."""
        before, self._state = self._state, state
        try:
            yield
        finally:
            self._state = before

    def compile(self, graph: Graph) -> Compilation:
        """Compile a captured graph: candidates, costs, solution, plan and source.

        With rank-local batches, the batch arrives sharded as in the best plan for a global batch.
        """
        if not self.options.batches.local:
            return self._compile(graph, None)
        form = self._batch or batch_form(self._compile(graph, None).plan, graph)
        if form.is_split or self._first is not None:
            return self._compile(graph, form)
        return self._dividing(graph, form)

    def _dividing(self, graph: Graph, whole: Sharding) -> Compilation:
        """Compile with the fastest sharding of the batch, for rank-local batches.

        Used if the best plan for a global batch replicates it: rank-local batches must be sharded,
        even if that is not the fastest.
        """
        made = []
        if self.options.preset is None:
            for form in sorted(batch_forms(self.mesh), key=lambda form: -len(form.cuts(0))):
                with suppress(InfeasibleError, ConstraintError, PlacementError):
                    if form.is_split and _fits(form, graph, self.mesh):
                        made.append(self._compile(graph, form))
        if made:
            return min(made, key=lambda each: each.plan.objective_s)
        if not self.options.planning.allow_undivided:
            check_local(whole, graph, self.mesh)
        return self._compile(graph, whole)

    def _compile(self, graph: Graph, batch: Sharding | None) -> Compilation:
        """Compile within the requested memory limit.

        Without a limit and preset, compile again within the device's memory if the best plan exceeds it.
        """
        check_axes(self.options.compression, self.mesh)
        settings, kept = self.settings(batch), self._saved(graph)
        flights = InFlightPlanner(graph, self.mesh, self.hardware, settings, kept)
        made = compile_graph(graph, self.mesh, self.hardware, settings, kept, known=flights)
        if self._first is None and not self.options.planning.allow_undivided:
            check_divided(
                made.plan, made.graph, settings.constraints, local=self.options.batches.local
            )
        own = device_memory(self.mesh, self.hardware)
        is_free = self.options.memory_limit is None and self.options.preset is None
        if is_free and self._first is None and made.plan.estimate.memory_nbytes > own:
            settings = replace(settings, memory_limit=own)
            known = flights.limited(own)
            made = compile_graph(graph, self.mesh, self.hardware, settings, kept, known=known)
        if self._first is None and not self.options.planning.allow_undivided:
            check_compressed(made.plan, made.graph)
        return made

    def _saved(self, graph: Graph) -> Mapping[str, Saved]:
        return saved(graph, self.hardware.device.kind)

    def settings(self, batch: Sharding | None) -> Settings:
        """Return the requested settings with this process's measured operator times, if any."""
        return replace(self.asked(batch), times=self.times)

    def asked(self, batch: Sharding | None) -> Settings:
        """Return the requested settings, which are equal on all ranks."""
        options = self.options
        chosen = (
            *preset_constraints(options.preset, self.mesh),
            *_constraints(options, self.mesh),
        )
        return Settings(
            optimizer=options.optimizer,
            states=options.update.states,
            whole_states=options.update.whole_states,
            reads=options.update.reads,
            memory_limit=None if options.memory_limit == math.inf else options.memory_limit,
            preset=options.preset or "",
            constraints=chosen,
            regather=presets.regathers(options.preset) if options.preset else None,
            precision=str(options.precision),
            batch=batch,
            storage=storage_of(self._first),
            pads_batch=not options.batches.local,
            padding=None if self._first is None else _of_parameters(self._first),
            recompute=options.block_mode,
            regathers=options.regathers,
            compression=options.compression,
            first=self._first is None,
        )

    @cached_property
    def times(self) -> Times | None:
        """The measured operator times for this hardware, if the options name a database."""
        database = self.options.planning.database
        return None if database is None else times_for(database, self.hardware, self.mesh)

    def frontier(self, graph: Graph, watch: Watch = unwatched) -> tuple[Compilation, ...]:
        """Return the plans on the time-memory frontier, from the fastest to the smallest."""
        saved = self._saved(graph)
        return frontier(graph, self.mesh, self.hardware, self.settings(None), saved, watch)

    def program(
        self, inputs: ExampleInputs, training: bool = True, edited: Path | None = None
    ) -> Program:
        """Capture inputs, compile on rank 0, and load the plan and source on every rank."""
        return self.program_of(self.graph(inputs, training), edited)

    def program_of(self, graph: Graph, edited: Path | None = None) -> Program:
        """Return the program of a captured graph.  Collective: rank 0 compiles it if not cached."""
        options = self.options
        agreement.assert_same_on_all_ranks(
            "the model, the mesh or the options",
            f"{graph.digest} {self.mesh} {options}",
            agreement.SAME_MODEL,
        )
        known = graph.digest, graph.returns
        if edited is None and known in self._programs:
            found: Program = self._programs.use(known)
            return found
        plan_text, source = agreement.from_first_rank(lambda: self._decide(graph, edited))
        plan = Plan.from_json(plan_text, "the plan of rank 0")
        graph = padded(graph, plan.padding)
        plan.check(graph)
        if self._first is None:
            self._first = plan
            self._batch = arriving(plan, graph)
        path = edited or keep(source, f"{graph.name}_{plan.digest}.py")
        made = load(plan, graph, source, path)
        self._programs.keep(known, made, None)
        return made

    def _decide(self, graph: Graph, edited: Path | None) -> tuple[str, str]:
        made = self.compile(graph)
        return made.plan.to_json(), made.source if edited is None else text_of(
            edited, "the source", SourceError
        )

    def for_batch(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], state: ModelState
    ) -> Program:
        """Compile the program of a batch for which none is cached.  Collective."""
        if args and kwargs:
            raise InputError(
                "Pass the batch as keyword arguments, or as positional ones, not both."
            )
        with self.standing(state):
            return self.program(kwargs or args, state.gradients)

    def for_microbatches(
        self,
        whole: Mapping[str, Any],
        microbatch: Mapping[str, Any],
        pieces: int,
        state: ModelState,
    ) -> tuple[Program | None, Program]:
        """Return the program of the whole batch's denominators (or None), and that of a microbatch."""
        parted = self._parted(whole, microbatch, pieces, state)
        counts = None if parted.counts is None else self.program_of(parted.counts)
        return counts, self.program_of(parted.microbatch)

    def _parted(
        self,
        whole: Mapping[str, Any],
        microbatch: Mapping[str, Any],
        pieces: int,
        state: ModelState,
    ) -> Parted:
        with self.standing(state):
            all_of_it = self.traced(whole)
            piece = self.graph_of(self.traced(microbatch), whole=all_of_it)
            return part(self.graph_of(all_of_it), piece, pieces)


def _fits(form: Sharding, graph: Graph, mesh: Mesh) -> bool:
    """Whether all batch inputs can have the sharding `form`."""
    return not any(form.fault(n.outputs[0].shape, mesh) for n in batch_inputs(graph))


def _cast(inputs: ExampleInputs, dtype: torch.dtype | None) -> ExampleInputs:
    """Cast the batch's floating-point tensors to the compute dtype."""
    if dtype is None:
        return inputs

    def cast(value: Any, _: str) -> Any:
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(dtype) if floating else value

    changed: ExampleInputs = mapped(inputs, "", cast)
    return changed


def _of_parameters(first: Plan) -> tuple[Padding, ...]:
    """Return the first plan's padding of parameters, which later programs keep (not the batch's)."""
    return tuple(padding for padding in first.padding if padding.leaf in first.parameter)


def _constraints(options: Options, mesh: Mesh) -> tuple[Constraint, ...]:
    given = options.constraints
    if isinstance(given, (str, Path)):
        return from_file(given, mesh)
    return given if isinstance(given, tuple) else from_user(given, mesh)
