"""The public entry points: `plan` computes a plan, `parallelize` also builds the training step.

The other functions return intermediate results of the same flow, for commands and tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from autopar.capture import ExampleInputs
from autopar.compile.automatic import (
    agreed_stages,
    chosen,
    refuse_asynchronous,
    samples_of,
)
from autopar.compile.compiler import Compiler, captured
from autopar.compile.given import (
    MeshLike,
    as_call,
    as_hardware,
    as_mesh,
    meshes_of,
    offered_inputs,
)
from autopar.compile.pipeline_compiler import PipelineCompiler
from autopar.errors import InfeasibleError, InputError
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.pipeline.build.pipeline_spec import PipelineSpec
from autopar.pipeline.build.staged import Staged
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.plans.record import View
from autopar.request.arrivals import arrived
from autopar.request.batch import Batch
from autopar.request.batches import Batches
from autopar.request.compression import Compression
from autopar.request.meta import without_weights
from autopar.request.old_spellings import with_old_spellings
from autopar.request.optimizers import OptimizerLike
from autopar.request.options import Constraints, Loss, Options
from autopar.request.pipeline import Pipeline, StagesLike
from autopar.request.planning import Planning
from autopar.request.weights import Weights, WeightsSource
from autopar.runtime import agreement, world
from autopar.runtime import failure_watchdog as faults
from autopar.runtime.inference import outside_inference
from autopar.runtime.parallel import Parallel
from autopar.runtime.pipeline.asynchronous import Asynchronous
from autopar.runtime.pipeline.module import Pipelined
from autopar.runtime.replaced import refuse_shared
from autopar.sharding.compressed_axes import check_compressed
from autopar.sharding.sharding_problem import Compilation
from autopar.utils.progress import Watch, alone, unwatched
from cost_models.hardware import Hardware


@with_old_spellings
@outside_inference
def parallelize(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: ExampleInputs | None = None,
    *,
    loss: Loss | None = None,
    optimizer: OptimizerLike = torch.optim.AdamW,
    precision: Any = None,
    preset: str | None = None,
    constraints: Constraints | None = None,
    memory_limit: float | str | None = None,
    recompute: str | None = None,
    compression: Compression | str | None = None,
    hardware: str | Hardware | None = None,
    pipeline: Pipeline | StagesLike = 1,
    batches: Batches | None = None,
    weights: Weights | WeightsSource | None = None,
    planning: Planning | None = None,
) -> Parallel | Pipelined:
    """Return the model as a distributed training step.  Call it on every rank, under ``torchrun``.

    Rank 0 computes the plan, and its weights initialise all ranks.  Without stages the result is a
    `Parallel`, trained with ``loss = parallel(**batch)`` and ``loss.backward()``; with stages it is a
    `Pipelined`, trained with ``train_step(**batch)``.

    - `model`: returns its loss, an object with ``.loss``, or the output that `loss` takes.  It may be
      on the meta device.
    - `mesh`: a shape such as ``(2, 4)``, a `Mesh` or a `DeviceMesh`; a number of devices, for which
      all meshes of one or two axes are compared; or a sequence of `Mesh` to choose from (for all
      meshes of up to three axes: ``autopar.request.views.views(64, 3)``).
    - `example_inputs`: one global batch, as a dict of keyword arguments (including the targets of
      `loss`) or a tuple.  Optional if the model provides its own.
    - `loss`: called as ``loss(output, **targets)``.
    - `optimizer`: the optimizer that you will use, which sets the memory of its state and the time of
      its step: a class, its name, or ``functools.partial(torch.optim.AdamW, fused=True)``.
    - `precision`: None (as the model is), ``"bfloat16"``, ``"float16"``, a ``torch.autocast``, or
      ``"bfloat16/bfloat16"``: gradients are reduced in bfloat16, too.
    - `preset`: the name of a known parallelism.
    - `constraints`: a dict from name patterns to types, a dict of such dicts below ``"pin"``,
      ``"forbid"`` and ``"prefer"`` (`autopar.request.constraints.from_user`), or a TOML file of these.
    - `memory_limit`: per device, in bytes or as ``"40GiB"``.  None applies the device's own memory if
      the best plan would exceed it.  ``"none"`` permits a plan without stages to exceed it, as a
      preset may.
    - `recompute`: ``"none"``, ``"selective"`` or ``"full"`` sets the recomputation of every block
      (`autopar.ir.blocks`); operators outside blocks keep their activations.  ``"gathers"`` only
      repeats all-gathers of activations in the backward.  None leaves it to the solver, which
      recomputes blocks only if the memory limit requires it.
    - `compression`: how gradients travel as fewer bytes where ranks sum them once per step: a
      `Compression`, or text such as ``"powersgd:8"`` or ``"int8"``.  The step is then no longer exact.
    - `hardware`: a profile's name or file; None is this machine.
    - `pipeline`: a number of stages, ``"auto"``, or a `Pipeline` with its schedule and microbatches.
      With ``asynchronous=True`` the result is an `Asynchronous`, trained with
      ``train_steps(batches, optimizer)``.
    - `batches`: a `Batches`: rank-local batches, additional outputs, replanning for other shapes.
    - `weights`: the source from which each rank reads its slices of the weights, or a `Weights` with
      an initialiser.
    - `planning`: a `Planning`: measured operator times, an edited source file, permission for
      undivided plans.

    Raises `InputError` or a subclass for arguments that do not fit, `CaptureError` for a model that
    cannot be captured, and `InfeasibleError` if no plan meets the constraints.
    """
    model = arrived(model)
    refuse_shared(model)
    options = Options.of(
        loss=loss, optimizer=optimizer, precision=precision, memory_limit=memory_limit,
        preset=preset, constraints=constraints, recompute=recompute, compression=compression,
        pipeline=pipeline, batches=batches, planning=planning,
    )  # fmt: skip
    given = Weights.of(weights)
    if options.pipeline.is_one_stage and len(meshes := meshes_of(mesh, options)) > 1:
        mesh = _agreed_view(model, meshes, example_inputs, hardware, options)
    device_mesh = world.device_mesh(mesh if isinstance(mesh, DeviceMesh) else as_mesh(mesh))
    faults.watch()
    compiler = Compiler(
        without_weights(model, options.precision.compute),
        as_mesh(device_mesh),
        as_hardware(hardware),
        options,
    )
    if not options.pipeline.is_one_stage:
        batch = _batch_of(model, example_inputs)
        found = agreed_stages(compiler, batch, options.pipeline)
        if found is not None:
            return _pipelined(model, compiler, *found, batch, given)
    return _whole(model, device_mesh, compiler, example_inputs, given)


def _whole(
    model: nn.Module,
    device_mesh: DeviceMesh,
    compiler: Compiler,
    example_inputs: ExampleInputs | None,
    weights: Weights,
) -> Parallel:
    """Build the training step of a model without pipeline stages."""
    options = compiler.options
    example = example_inputs if example_inputs is not None else offered_inputs(model)
    if not options.batches.local:
        agreement.assert_same_on_all_ranks("the example inputs", Batch.of(*as_call(example)).digest)
    program = compiler.program(example, edited=options.planning.source)
    return Parallel(
        model, device_mesh, program, compiler, example=Batch.of(*as_call(example)),
        replan=options.batches.replan, local_input=options.batches.local, weights=weights,
    )  # fmt: skip


def _pipelined(
    model: nn.Module,
    compiler: Compiler,
    wanted: PipelineSpec,
    given: Staged | None,
    example: Mapping[str, Any],
    weights: Weights,
) -> Pipelined:
    """Build the training step of a model that is divided into pipeline stages."""
    agreement.assert_same_on_all_ranks("the example inputs", Batch.of((), example).digest)
    staged = PipelineCompiler(compiler, wanted, given)
    built = staged.first(example)
    aliases = compiler.graph(example).aliases
    kind = Asynchronous if built.plan.schedule.asynchronous else Pipelined
    return kind(
        model, built, staged, example=Batch.of((), example), aliases=aliases, weights=weights,
    )  # fmt: skip


def _batch_of(model: nn.Module, example_inputs: ExampleInputs | None) -> Mapping[str, Any]:
    """Return a pipeline's example batch as keyword arguments.  Raise `InputError` for another form."""
    example = example_inputs if example_inputs is not None else offered_inputs(model)
    if not isinstance(example, Mapping):
        raise InputError(
            f"A pipeline takes its batch by name, not as a {type(example).__name__}: example inputs "
            f"have to be a dict of keyword arguments of {type(model).__name__}.forward."
        )
    return example


@with_old_spellings
def plan(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: ExampleInputs | None = None,
    *,
    hardware: str | Hardware | None = None,
    **options: Any,
) -> Plan | PipelinePlan:
    """Return the plan that `parallelize` would compute, without processes and without weights.

    If `mesh` is a number of devices, all its meshes of one or two axes are compared.
    The model may be on the meta device.  `options` are those of `parallelize` except `weights`.
    """
    asked = Options.of(**options)
    if asked.pipeline.is_one_stage:
        return _best_view(model, meshes_of(mesh, asked), example_inputs, hardware, asked).plan
    return _staged(model, mesh, example_inputs, hardware, asked).plan


@with_old_spellings
def compile_staged(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: ExampleInputs | None = None,
    *,
    hardware: str | Hardware | None = None,
    pipeline: Pipeline | StagesLike = "auto",
    **options: Any,
) -> Staged | Compilation:
    """Return a pipeline with its stages' graphs and sources.

    With ``"auto"`` the result is a `Compilation` without stages if no pipeline is faster.
    """
    asked = Options.of(pipeline=pipeline, **options)
    return _staged(model, mesh, example_inputs, hardware, asked)


def _staged(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: ExampleInputs | None,
    hardware: str | Hardware | None,
    asked: Options,
) -> Staged | Compilation:
    """Compile the requested pipeline; for ``"auto"``, the best result with or without stages."""
    is_auto = asked.pipeline.stages == "auto"
    if is_auto and not isinstance(example_inputs or offered_inputs(model), Mapping):
        return _best_view(model, meshes_of(mesh, asked), example_inputs, hardware, asked)
    inputs = _batch_of(model, example_inputs)
    bare = without_weights(model, asked.precision.compute)
    compiler = Compiler(bare, as_mesh(mesh), as_hardware(hardware), asked)
    if is_auto:
        refuse_asynchronous(asked.pipeline)
        found = chosen(compiler, inputs, asked.pipeline)
        best = found.staged or found.plain
        assert best is not None
        return best
    wanted = PipelineSpec.of(compiler.mesh, asked.pipeline, samples_of(inputs))
    return PipelineCompiler(compiler, wanted).decide(inputs)[0]


@with_old_spellings
def compile_model(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: ExampleInputs | None = None,
    *,
    hardware: str | Hardware | None = None,
    **options: Any,
) -> Compilation:
    """Plan without stages and return all intermediate results: graph, problem, plan and source."""
    asked = Options.of(**options)
    return _best_view(model, meshes_of(mesh, asked), example_inputs, hardware, asked)


@with_old_spellings
def plan_frontier(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: ExampleInputs | None = None,
    *,
    hardware: str | Hardware | None = None,
    watch: Watch = unwatched,
    **options: Any,
) -> tuple[Plan, ...]:
    """Return plans from the fastest to the smallest: vertices of the lower hull of (bytes, seconds).

    The hull is the convex hull of all plans by the solver's estimates.  Other Pareto-optimal plans may
    lie between two vertices.  `watch` reports progress as plans are found.
    """
    capture = partial(captured_by, model, mesh, example_inputs, hardware, Options.of(**options))
    compiler, graph = alone(capture, watch, "capturing the model")
    found = compiler.frontier(graph, watch)
    for made in found:
        check_compressed(made.plan, made.graph)
    return tuple(made.plan for made in found)


def _agreed_view(
    model: nn.Module,
    meshes: tuple[Mesh, ...],
    example_inputs: ExampleInputs | None,
    hardware: str | Hardware | None,
    options: Options,
) -> Mesh:
    """Choose the best mesh on rank 0 and return it on all ranks."""
    world.join(meshes[0].world_size)
    faults.watch()

    def choose() -> tuple[str, ...]:
        return (str(_best_view(model, meshes, example_inputs, hardware, options).plan.mesh),)

    (text,) = agreement.from_first_rank(choose)
    return Mesh.parse(text)


def _best_view(
    model: nn.Module,
    meshes: tuple[Mesh, ...],
    example_inputs: ExampleInputs | None,
    hardware: str | Hardware | None,
    options: Options,
) -> Compilation:
    """Compile for each mesh and return the fastest result, with the times of all meshes in its plan.

    Raise `InfeasibleError` if no mesh has a plan.
    """
    compiler, graph = captured_by(model, meshes[0], example_inputs, hardware, options)
    made, refusals = {}, {}
    for mesh in meshes:
        try:
            made[mesh] = compiler.on(mesh).compile(graph)
        except InfeasibleError as error:
            refusals[mesh] = error
    if not made:
        raise refusals[meshes[-1]]
    best = min(made.values(), key=lambda compilation: compilation.plan.objective_s)
    compared = tuple(
        View(str(mesh), made[mesh].plan.objective_s if mesh in made else None) for mesh in meshes
    )
    return replace(best, plan=replace(best.plan, views=compared if len(meshes) > 1 else ()))


def captured_by(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: ExampleInputs | None,
    hardware: str | Hardware | None,
    options: Options,
) -> tuple[Compiler, Graph]:
    """Return a compiler that needs no processes and no weights, and the graph that it captured."""
    bare = without_weights(model, options.precision.compute)
    inputs = example_inputs if example_inputs is not None else offered_inputs(model)
    compiler = Compiler(bare, as_mesh(mesh), as_hardware(hardware), options)
    return compiler, compiler.graph(inputs)


def captured_graph(
    model: nn.Module, example_inputs: ExampleInputs | None, *, loss: Loss | None = None
) -> Graph:
    """Return the model's graph, captured as by `plan` with default options."""
    inputs = example_inputs if example_inputs is not None else offered_inputs(model)
    return captured(without_weights(model, None), inputs, Options(loss=loss))
